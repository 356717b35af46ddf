"""What would make a score false without a word: an environment that writes into its task, and a
method that reaches for the held-out tasks or returns another agent than the run's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trace_bench as tb
from trace_bench.core.protocols import Yardstick

PLAIN: dict[str, Any] = {
    "policy": "idle", "budget": 8, "checkpoints": [], "evaluation__yardsticks": False,
}  # fmt: skip


def count(data: Mapping[str, Any]) -> int:
    return len(data["seen"])


def note(data: Mapping[str, Any], how: str) -> None:
    """Writes into a task's data: into a list, into the dict, into what it holds."""
    if how == "list":
        data["seen"].append(1)
    elif how == "dict":
        data["seen"] = [*data["seen"], 1]  # type: ignore[index]
    else:
        data["deep"][0]["seen"].append(1)


class Diary(tb.Env):
    """Solved by the second visit, if the first one left its mark in the task."""

    def __init__(self, how: str) -> None:
        self.how = how

    def reset(self, task: tb.Task) -> tb.Step:
        place = task.data["deep"][0] if self.how == "deep" else task.data
        self.solved = count(place) > 0
        note(task.data, self.how)
        return tb.Step(({"role": "user", "content": "Well?"},))

    def step(self, action: tb.Message) -> tb.Step:
        score = tb.Score(float(self.solved), self.solved)
        return tb.Step(done=True, score=score, stop=tb.StopReason.DONE)


class Diaries(tb.Suite):
    """`together`: steps come in batches, as a sandbox takes them."""

    name, variant = "diaries", "own"

    def __init__(self, how: str = "list") -> None:
        self.how = how
        self._tasks = {
            split: [
                tb.Task(f"d/{split}/{n}", "diaries", split, n,
                        {"split": split, "n": n, "seen": [], "deep": [{"seen": []}]})
                for n in range(4)
            ]
            for split in ("train", "dev", "test")
        }  # fmt: skip

    def splits(self) -> list[str]:
        return list(self._tasks)

    def tasks(self, split: str) -> list[tb.Task]:
        return self._tasks[split]

    def task(self, task_id: str) -> tb.Task:
        _, split, n = task_id.split("/")
        return self._tasks[split][int(n)]

    def make(self) -> Diary:
        return Diary(self.how)


class Batched(Diaries):
    def act(self, calls: Sequence[tuple[tb.Env, Any]]) -> list[tb.Step]:
        return [e.reset(w) if isinstance(w, tb.Task) else e.step(w) for e, w in calls]


class Plays(tb.Method):
    """Does one thing that a method may not do, then returns an agent."""

    def __init__(self, what: str = "nothing") -> None:
        self.what = what

    def plan(self, run: tb.PlannedRun) -> tb.MethodPlan:
        others = (Yardstick("other", "another", Plays("id")),) * (self.what == "yardstick")
        return tb.MethodPlan(learns=False, yardsticks=others)

    def fit(self, base: tb.AgentSpec, tasks: Sequence[tb.Task], lab: tb.Lab) -> tb.AgentSpec:
        test = lab.suite.tasks("test")
        played = {
            "id": test[:1],
            "content": [replace(tasks[0], data=dict(test[1].data))],
            "content, renamed": [replace(test[2], id="d/mine/1", split="mine")],
        }
        if self.what in played:
            lab.rollouts("looks", base, played[self.what], purpose=tb.Purpose.ANALYSIS)
        if self.what == "ledger":
            lab.ledger.budget = 64  # type: ignore[attr-defined]
            lab.rollouts("looks", base, [*tasks] * 3, purpose=tb.Purpose.ANALYSIS)
        if self.what == "change":
            test[0].data["seen"].append(1)
        if self.what == "model":
            return replace(base, model="elsewhere", version="new")
        if self.what == "adapter":
            return replace(base, adapters=(tb.AdapterRef("a@1", "/nowhere/a"),), version="new")
        return replace(base, prompt="Be quick.", version="new")


@pytest.mark.parametrize("suite", [Diaries("list"), Diaries("dict"), Diaries("deep"), Batched()])
def test_what_an_environment_writes_into_a_task_nobody_sees(tmp_path: Path, suite: Diaries) -> None:
    result = tb.run(method=Plays(), env=suite, run_dir=str(tmp_path / "run"), **PLAIN)
    assert result.summary.base_score.success == result.score.success == 0.0


REACHES = [
    ("id", "d/test/0, which is held out"),
    ("content", "d/train/0, which is held out or has the content"),
    ("content, renamed", "d/mine/1, which is held out or has the content"),
    ("change", "the held-out task d/test/0 was changed during the run"),
    ("model", "an agent with the model elsewhere"),
    ("adapter", "an agent with the adapter /nowhere/a"),
    ("ledger", "the ledger has 12 rollouts with budget=8"),
    ("yardstick", "d/test/0, which is held out"),
]


@pytest.mark.parametrize(("what", "words"), REACHES)
def test_a_method_that_reaches_further_ends_the_run(tmp_path: Path, what: str, words: str) -> None:
    """Also for held-out tasks beyond those that are measured."""
    more = {**PLAIN, "evaluation__limit": 1} if "content" in what else PLAIN
    more = {**PLAIN, "evaluation__yardsticks": True} if what == "yardstick" else more
    with pytest.raises(tb.UserError, match=words):
        tb.run(method=Plays(what), env=Diaries(), run_dir=str(tmp_path / "run"), **more)
    assert not (tmp_path / "run" / "summary.json").exists()
