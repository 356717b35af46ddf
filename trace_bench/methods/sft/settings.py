"""The numbers of `method=sft`, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

from trace_bench.methods.tuning import TuningSettings


@dataclass(frozen=True)
class SftSettings(TuningSettings):
    """`method.*` of `method=sft`."""

    data: str | None = None
    """A file, or a folder of files, in one of these formats: ATIF, logs of Inspect as JSON, and the
    chat format of OpenAI or that of the Agent Data Protocol, one JSON object a line; None: the
    project's own demonstrations, drawn from the mixture that the tiny agent was trained on."""
    demonstrations: int = field(default=1024, metadata={"low": 1})
    """How many of them are used, the first ones that fit."""
