"""TRACE and its kin on a suite from outside: the toy world, with an agent that often leaves out
the second number. It has references and no milestones, and may or may not make tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from named import method
from toy import ToyEnv, ToySuite
from trace_lab import BASE, MemoryLab

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.protocols import PlannedRun, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import (
    Message,
    Milestone,
    Purpose,
    Score,
    Step,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from trace_bench.methods.grpo import Untargeted
from trace_bench.methods.looking.capabilities import Label
from trace_bench.methods.looking.rules import label
from trace_bench.methods.making import TaskSettings
from trace_bench.methods.rft import PromptOnly, PromptOnlySettings
from trace_bench.methods.trace import Trace
from trace_bench.methods.trace.settings import (
    TraceSettings,
)

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


class MarkedEnv(ToyEnv):
    """The toy environment with a milestone for each number and one for the answer."""

    def reset(self, task: Task) -> Step:
        self.added: list[str] = []
        return super().reset(task)

    def step(self, action: Message) -> Step:
        calls = action.get("tool_calls", ())
        self.added += [json.loads(c["function"]["arguments"])["number"] for c in calls]
        step = super().step(action)
        if step.score is None:
            return step
        wanted = f"sum {sum(self.task.data['add'])}"
        told = action["content"] == wanted
        made = [Milestone(f"add {n}", float(hit), hit)
                for n in self.task.data["add"] for hit in (n in self.added,)]  # fmt: skip
        said = Milestone("says the sum", float(told), told, tells=wanted)
        return replace(step, score=replace(step.score, milestones=(*made, said)))


class Marked(Bare):
    """A suite with milestones and no references."""

    def make(self) -> MarkedEnv:
        return MarkedEnv()

    def milestones(self, task: Task) -> Sequence[Milestone]:
        wanted = f"sum {sum(task.data['add'])}"
        added = [Milestone(f"add {n}", 0.0, False) for n in task.data["add"]]
        return [*added, Milestone("says the sum", 0.0, False, tells=wanted)]


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


def test_milestones_do_where_there_are_no_references() -> None:
    """The same capability is found as with references, with the same label in every episode."""
    agent, lab = fit(Trace(TraceSettings(synthesis="select")), Marked())
    assert [a.capability for a in agent.adapters] == [PARTS]
    _, other = fit(Trace(TraceSettings(synthesis="select")), ToySuite())
    rows, others = (x.files["capabilities.json"]["labels"] for x in (lab, other))
    verdicts = [r["labels"][PARTS] for r in rows]
    assert verdicts == [r["labels"][PARTS] for r in others]
    assert set(verdicts) == {"LACKING", "PRESENT", "NA"}
    assert {r["labels"]["converts_values"] for r in rows} == {"NA"}  # no rule can see that


def shown(*messages: Message, listed: Any = (), **marks: Any) -> dict[str, str]:
    """The labels by the milestones of the score, or `listed` ones where it has none; those that are
    NA left out."""
    turns = tuple(Turn((), m) for m in messages if m["role"] == "assistant")
    seen = [m for m in messages if m["role"] != "assistant"]
    played = Trajectory(
        "t", 0, "base", (), tuple(replace(t, messages=tuple(seen[i : i + 1])) for i, t in
        enumerate(turns)), tuple(seen[len(turns) :]), StopReason.DONE, Score(0.0, False, **marks),
    )  # fmt: skip
    return {k: v.value for k, v in label(listed, played).items() if v is not Label.NA}


def test_the_rules_for_milestones() -> None:
    ask = {"role": "user", "content": "Send it."}
    failed = {"role": "tool", "tool_call_id": "call_0", "name": "f", "content": "ValueError: no"}
    worked = {**failed, "content": "1"}
    call, done = call_message("f", {}), text_message("Done.")
    missed, met = Milestone("sent", 0.0, False), Milestone("sent", 1.0, True)
    said = Milestone("says so", 0.0, False, tells="It is sent.")
    assert shown(ask, call, failed, done, milestones=(missed,))["recovers_from_errors"] == "LACKING"
    again = shown(ask, call, failed, call, worked, done, milestones=(met,))
    assert again["recovers_from_errors"] == "PRESENT"
    needless = shown(ask, call, failed, done, milestones=(met,))
    assert "recovers_from_errors" not in needless
    assert shown(ask, done, minefields=(met,))["declines_when_impossible"] == "LACKING"
    assert shown(ask, done, minefields=(missed,))["declines_when_impossible"] == "PRESENT"
    assert shown(ask, done, milestones=(met, said))["tells_the_user"] == "LACKING"
    assert "tells_the_user" not in shown(ask, done, milestones=(missed, said))
    assert shown(ask, done, milestones=(missed,))["uses_tools_at_all"] == "LACKING"
    assert "uses_tools_at_all" not in shown(ask, done, milestones=(said,))
    cut = shown(ask, call, failed, call, failed, listed=(missed,))  # an episode without its own
    assert cut["recovers_from_errors"] == "LACKING" and cut["uses_tools_at_all"] == "PRESENT"


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
    assert (
        f"{PARTS} is selected but not trained: it is not among the suite's capabilities()"
        in lab.logged
    )
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


@pytest.mark.parametrize(
    ("method", "suite", "hint"),
    [
        (Trace(TraceSettings()), ToySuite(), "method.synthesis=select"),
        (Trace(TraceSettings(synthesis="select")), Bare(), "llm.analyst.by=endpoint"),
        (PromptOnly(PromptOnlySettings()), Bare(), "llm.analyst.by=endpoint"),
        (Untargeted(TaskSettings()), ToySuite(), "method=grpo"),
    ],
    ids=["no generator", "no references", "prompt_only", "untargeted"],
)
def test_what_a_suite_lacks_is_known_before_anything_is_played(
    method: Any, suite: Any, hint: str
) -> None:
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
