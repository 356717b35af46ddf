"""The numbers of `method=sft`, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SftSettings:
    """`method.*` of `method=sft`. The adapter's rank and layers are the trainer's."""

    data: str | None = None
    """A file, or a folder of files, in one of these formats: ATIF, logs of Inspect as JSON, and the
    chat format of OpenAI or that of the Agent Data Protocol, one JSON object a line; None: the
    project's own demonstrations, drawn from the mixture that the tiny agent was trained on."""
    demonstrations: int = field(default=1024, metadata={"low": 1})
    """How many of them are used, the first ones that fit."""
    epochs: int = field(default=1, metadata={"low": 1})
    """Passes over the demonstrations."""
    batch: int = field(default=32, metadata={"low": 1})
    """Demonstrations in one optimizer step."""
    learning_rate: float = field(default=0.001, metadata={"low": 0})
    """At the first step; it falls linearly to 0."""
