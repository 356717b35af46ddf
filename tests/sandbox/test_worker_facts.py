"""What a run tells a suite of one's own: the same in a worker as in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_bench.core.protocols import RunContext
from trace_bench.sandbox.choose import suite_in
from trace_bench.sandbox.engine import Sandbox
from trace_bench.sandbox.suite import SandboxedSuite
from trace_bench.settings.registry import find
from trace_bench.settings.schema import EnvSettings

SUITE = """
from trace_bench import RunContext, Suite, Task

class Dice(Suite):
    name, variant = "dice", "own"
    def __init__(self, run: RunContext): self.run = run
    def splits(self): return [f"{self.run.seed}/{self.run.budget}/{self.run.max_turns}"]
    def tasks(self, split): return [Task("dice-0", "dice", split, self.run.seed)]
    def task(self, task_id): return self.tasks("train")[0]
    def make(self): raise NotImplementedError
"""


def test_the_facts_of_the_run_reach_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dice_of_facts.py").write_text(SUITE)
    part = find("env", EnvSettings("custom", "dice_of_facts:Dice"))
    facts = RunContext(seed=7, budget=64, max_turns=5)
    suite = suite_in(part, facts, Sandbox("process", run="facts"), EnvSettings("custom"), print)
    assert isinstance(suite, SandboxedSuite)
    assert list(suite.splits()) == ["7/64/5"] == part.make(facts).splits()
    suite.close()
