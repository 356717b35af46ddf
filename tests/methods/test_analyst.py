"""The analyst's labelling runs when its server fails."""

from __future__ import annotations

from typing import Any

import pytest
from trace_lab import BASE, MemoryLab

from trace_bench.core.errors import UserError
from trace_bench.core.types import Purpose
from trace_bench.llm.client import LLMError
from trace_bench.methods.looking import analyst
from trace_bench.methods.looking.capabilities import Analysed, AnalysisSettings, Capability


class AnsweringLab(MemoryLab):
    """Its analyst labels everything present, but for the third labelling run."""

    def __init__(self, error: Exception) -> None:
        super().__init__({"recovers_from_errors": 0.5}, 16)
        self.error = error

    def prompt_limit(self, role: str) -> int | None:
        return 60_000

    def ask(self, role: str, call: str, messages: Any, read: Any, schema: Any = None) -> Any:
        if call.startswith("label/2/"):
            raise self.error
        return {f"T{n:03d}": {"careful": analyst.Label.PRESENT} for n in range(1, 17)}


def label(lab: AnsweringLab) -> list[analyst.LabellingRun]:
    tasks = lab.suite.tasks("train")[:16]
    played = lab.rollouts("look", BASE, tasks, purpose=Purpose.ANALYSIS)
    pairs = enumerate(zip(tasks, played, strict=True), start=1)
    seen = {f"T{n:03d}": Analysed(task, trajectory) for n, (task, trajectory) in pairs}
    careful = Capability("careful", "Looks before it acts.")
    settings = AnalysisSettings(runs=6, keep_runs=5)
    return analyst.label(lab, seen, [careful], settings)  # type: ignore[arg-type]


def test_one_refused_labelling_run_is_dropped() -> None:
    lab = AnsweringLab(LLMError("too long", 400))
    assert len(label(lab)) == 5
    assert lab.logged == ["labelling run 2 is dropped: too long"]


def test_an_outage_ends_the_run() -> None:
    """Else the number of labelling runs would depend on the server's health."""
    with pytest.raises(UserError, match="the analyst does not answer"):
        label(AnsweringLab(UserError("the analyst does not answer")))
