"""TRACE and its kin on a suite from outside: the toy world, with an agent that often leaves out
the second number. It has references and no milestones, and may or may not make tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from named import method
from toy import ToySuite
from trace_lab import BASE, MemoryLab

from trace_bench.core.chat import text_message
from trace_bench.core.protocols import PlannedRun, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Message, Purpose, Task, Trajectory, Turn
from trace_bench.methods.grpo import Untargeted
from trace_bench.methods.making import TaskSettings
from trace_bench.methods.rft import PromptOnly, PromptOnlySettings
from trace_bench.methods.trace import Trace
from trace_bench.methods.trace.settings import TraceSettings

PARTS = "completes_all_parts"


class Making(ToySuite):
    """Makes tasks for a capability of the vocabulary and for one that nobody looks for; knows no
    contrast cases, and nothing of the other capabilities."""

    def capabilities(self) -> Sequence[str]:
        return [PARTS, "counts_backwards"]

    def synthetic(self, capability: str, seed: int) -> Task:
        numbers = [seed % 80 + 5, seed % 7 + 90]
        data = {"add": numbers if capability == PARTS else numbers[:1]}
        return Task(f"toy/tests/{capability}/{seed}", "toy", "synthetic", seed, data)


class Bare(ToySuite):
    """A suite with no ability at all."""

    variant = "bare"
    reference = Suite.reference  # type: ignore[assignment]


class Adding(MemoryLab):
    """Its agent leaves out the second number in seven episodes of ten."""

    def __init__(self, suite: Any, budget: int = 300) -> None:
        super().__init__({}, budget, 5, suite=suite)

    def _episode(self, call: str, index: int, task: Task) -> Trajectory:
        replies = list(ToySuite().reference(task))
        careless = random.Random(stable_seed(self.seed, call, index)).random() < 0.7
        if len(task.data["add"]) == 2 and careless:
            replies = [replies[0], text_message(f"sum {task.data['add'][0]}")]
        return acted(self.suite, task, replies)


def acted(suite: Any, task: Task, replies: Sequence[Message]) -> Trajectory:
    env = suite.make()
    first = step = env.reset(task)
    turns: list[Turn] = []
    for reply in replies:
        turns.append(Turn(step.messages, reply))
        step = env.step(reply)
    return Trajectory(
        task.id, 0, "base", first.tools, tuple(turns), step.messages, step.stop, step.score
    )


def fit(method: Any, suite: Any, budget: int = 300) -> tuple[Any, Adding]:
    lab = Adding(suite, budget)
    return method.fit(BASE, suite.tasks("train"), lab), lab


def purposes(lab: Adding) -> set[Purpose]:
    return {purpose for _, purpose, _ in lab.calls}


def test_with_references_only_it_trains_on_training_tasks() -> None:
    suite = ToySuite()
    assert suite.has(Suite.reference) and not suite.has(Suite.synthetic)
    agent, lab = fit(Trace(TraceSettings(synthesis="select")), suite)
    assert [a.capability for a in agent.adapters] == [PARTS]
    assert purposes(lab) == {Purpose.ANALYSIS, Purpose.TRAINING} and lab.left == 0
    (job,) = lab.trainer.jobs
    rows = lab.files["capabilities.json"]["labels"]
    lacking = {r["task"] for r in rows if r["labels"][PARTS] == "LACKING" and not r["passed"]}
    assert {t.id for t in job.tasks} == lacking and len(job.tasks) == len(lacking) > 3
    (measured,) = lab.files["capabilities.json"]["calibration"]
    assert measured["name"] == PARTS and measured["outcome"].startswith("environments selected")
    assert measured["tasks"] == [t.id for t in job.tasks]
    (numbers,) = measured["rounds"]
    assert numbers["rollouts"] == 2 * numbers["groups"] == 2 * len(job.tasks)
    assert 0 <= numbers["success"] < 1


def test_with_a_generator_it_trains_on_the_tasks_that_the_suite_makes() -> None:
    agent, lab = fit(Trace(TraceSettings(synthetic_tasks=24)), Making())
    assert [a.capability for a in agent.adapters] == [PARTS]
    assert purposes(lab) == {Purpose.ANALYSIS, Purpose.CALIBRATION, Purpose.TRAINING}
    (job,) = lab.trainer.jobs
    assert len({t.id for t in job.tasks}) == 24
    assert all(t.id.startswith(f"toy/tests/{PARTS}/") for t in job.tasks)


def test_a_capability_that_the_generator_does_not_know_is_named_and_not_trained() -> None:
    class Other(Making):
        def capabilities(self) -> Sequence[str]:
            return ["counts_backwards"]

    agent, lab = fit(Trace(TraceSettings()), Other())
    assert agent is BASE
    why = f"{PARTS} is selected but not trained: it is not among the suite's capabilities()"
    assert why in lab.logged
    assert any(f"{PARTS} cannot be trained" in text for text in lab.logged)
    (candidate,) = (c for c in lab.files["capabilities.json"]["candidates"] if c["name"] == PARTS)
    assert candidate["selected"] and not candidate["trainable"]


def test_the_other_methods_of_this_kind_work_there_too() -> None:
    prompted, _ = fit(PromptOnly(PromptOnlySettings()), ToySuite())
    assert prompted.prompt == "Do every part of the request."
    one, _ = fit(method("single_capability", synthesis="select"), ToySuite())
    assert [a.capability for a in one.adapters] == [PARTS]
    broad, lab = fit(Untargeted(TaskSettings(synthetic_tasks=8)), Making())
    assert len(broad.adapters) == 1 and len(lab.trainer.jobs[0].tasks) == 16


LACKS = {
    "no generator": (Trace(TraceSettings()), ToySuite(), "method.synthesis=select"),
    "no references": (Trace(TraceSettings(synthesis="select")), Bare(), "llm.analyst.by=endpoint"),
    "prompt_only": (PromptOnly(PromptOnlySettings()), Bare(), "llm.analyst.by=endpoint"),
    "untargeted": (Untargeted(TaskSettings()), ToySuite(), "method=grpo"),
}


@pytest.mark.parametrize(("method", "suite", "hint"), LACKS.values(), ids=LACKS)
def test_what_a_suite_lacks_is_known_beforehand(method: Any, suite: Any, hint: str) -> None:
    needs = method.plan(PlannedRun(300, 16, Adding(suite).trainer)).needs
    (lacking,) = [n for n in needs if n.group == "env" and not suite.has(n.ability)]
    assert hint in lacking.hint


def test_a_task_whose_reference_cannot_be_played_gets_no_labels() -> None:
    """Its failures count as lost."""

    class Holey(ToySuite):
        def reference(self, task: Task) -> Sequence[Message]:
            if task.id.endswith("0003"):
                raise RuntimeError("lost")
            return super().reference(task)

    agent, lab = fit(Trace(TraceSettings(synthesis="select")), Holey())
    assert [a.capability for a in agent.adapters] == [PARTS]
    assert any("0003 is not labelled" in text and "lost" in text for text in lab.logged)
    counts = lab.files["capabilities.json"]["analysis"]
    assert (counts["passed"], counts["failed"], counts["lost"]) == (22, 8, 2)
    assert not any(t.id.endswith("0003") for t in lab.trainer.jobs[0].tasks)
