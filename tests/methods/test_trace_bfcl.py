"""TRACE on BFCL-V4 multi-turn, with an agent that makes mistakes of known kinds."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed (docs/bfcl.md says how)")
pytest.importorskip("mpmath", reason="mpmath is not installed (docs/bfcl.md says how)")

from bfcl_play import changed, messages
from playing import FunctionPolicy, play
from sandboxes import in_process
from trace_lab import BASE, MemoryLab

from trace_bench.core.protocols import TurnRequest
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Task, Trajectory
from trace_bench.envs.bfcl.suite import BfclSuite
from trace_bench.methods.trace import Trace
from trace_bench.methods.trace.settings import TraceSettings

pytestmark = pytest.mark.worlds


class Careless(MemoryLab):
    """Its agent makes one mistake in three episodes of four."""

    kinds = ("dropped call", "wrong argument", "empty turn", "call too early")

    def _episode(self, call: str, index: int, task: Task) -> Trajectory:
        rng = Random(stable_seed(self.seed, call, index))
        actions = list(self.suite.reference(task))
        if rng.random() < 0.75:
            actions = messages(changed(task.data["record"], rng.choice(self.kinds), rng))
        policy = FunctionPolicy(lambda request: actions[self.place(request)])
        self.places: Counter[int] = Counter()
        (played,) = play(policy, self.suite, BASE, [task], [index], max_turns=168)
        return played

    def place(self, request: TurnRequest) -> int:
        self.places[request.episode] += 1
        return self.places[request.episode] - 1


def test_it_trains_on_the_tasks_whose_failures_lack_a_capability() -> None:
    suite: BfclSuite = in_process("bfcl", "base")
    lab: Any = Careless({}, 400, suite=suite)
    agent = Trace(TraceSettings(synthesis="select")).fit(BASE, suite.tasks("train"), lab)
    trained = {a.capability for a in agent.adapters}
    assert "completes_all_parts" in trained
    rows = lab.files["capabilities.json"]["labels"]
    assert len(rows) == 80 and 10 < sum(row["passed"] for row in rows) < 40
    # Most failures are explained; a success rarely lacks anything (a harmless mistake).
    lacks: dict[bool, list[bool]] = {True: [], False: []}
    for row in rows:
        lacks[row["passed"]].append("LACKING" in row["labels"].values())
    assert sum(lacks[False]) > 0.6 * len(lacks[False])
    assert sum(lacks[True]) < 0.2 * len(lacks[True])
