"""The analyst's labelling runs when its server fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from trace_lab import BASE, MemoryLab

from trace_bench.core.errors import UserError
from trace_bench.core.types import Purpose
from trace_bench.llm.client import LLMError
from trace_bench.methods.looking import analyst
from trace_bench.methods.looking.capabilities import AnalysisSettings, Capability


class AnsweringLab(MemoryLab):
    """Its analyst labels everything present, but for the third labelling run."""

    def __init__(self, error: LLMError) -> None:
        super().__init__({"recovers_from_errors": 0.5}, 16)
        self.error, self.retracted = error, list[str]()
        self.lock = threading.Lock()

    def prompt_limit(self, role: str) -> int | None:
        return 60_000

    def ask(self, role: str, call: str, messages: Any, read: Any, schema: Any = None) -> Any:
        if call.startswith("label/2/"):
            raise self.error
        return {f"T{n:03d}": {"careful": analyst.Label.PRESENT} for n in range(1, 17)}

    def retract(self, role: str, calls: str) -> None:
        self.retracted.append(calls)


def label(lab: AnsweringLab) -> list[analyst.LabellingRun]:
    tasks = lab.suite.tasks("train")[:16]
    played = lab.rollouts("look", BASE, tasks, purpose=Purpose.ANALYSIS)
    seen = analyst.number([(t, p, False) for t, p in zip(tasks, played, strict=True)])
    careful = Capability("careful", "Looks before it acts.")
    settings = AnalysisSettings(runs=4, keep_runs=3, minimum_runs=2)
    return analyst.label(lab, seen, [careful], settings)  # type: ignore[arg-type]


def test_one_refused_labelling_run_is_dropped() -> None:
    lab = AnsweringLab(LLMError("too long", 400))
    assert len(label(lab)) == 3
    assert lab.logged == ["labelling run 2 is dropped: too long"]


def test_an_outage_ends_the_run_and_keeps_what_was_answered() -> None:
    """Else the number of labelling runs would depend on the server's health. The failure itself is
    discarded: the next start asks again."""
    lab = AnsweringLab(LLMError("http://127.0.0.1:9: refused (tried 3 times)"))
    with pytest.raises(UserError, match=r"the analyst does not answer: .* goes on from here"):
        label(lab)
    assert lab.retracted == ["label/2/0"]
