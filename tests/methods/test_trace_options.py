"""The settings of method=trace that are off by default, with a scripted agent in the real world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from named import QUICK, method
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun
from trace_bench.core.types import AgentSpec, Purpose, Score, StopReason, Task, Trajectory
from trace_bench.methods.trace.progress import Progress, weights
from trace_bench.trainers.local import LocalTrainer
from trace_bench.trainers.settings import TrainerSettings

HABITS = {"recovers_from_errors": 0.6, "completes_all_parts": 0.5, "disambiguates": 0.7}


def fit(budget: int = 600, **settings: Any) -> tuple[AgentSpec, MemoryLab]:
    lab = MemoryLab(HABITS, budget, 3)
    made = method("trace", **QUICK["trace"], **settings)
    return made.fit(BASE, lab.suite.tasks("train"), lab), lab


@pytest.fixture(scope="module")
def usual() -> tuple[AgentSpec, MemoryLab]:
    return fit()


def spent(lab: MemoryLab) -> Counter[Purpose]:
    counted: Counter[Purpose] = Counter()
    for _, purpose, tasks in lab.calls:
        counted[purpose] += len(tasks)
    return counted


def test_without_calibration_its_rollouts_go_to_training(usual: Any) -> None:
    _, lab = fit(calibration_rounds=0)
    before, after = spent(usual[1]), spent(lab)
    assert before[Purpose.CALIBRATION] > 0 and after[Purpose.CALIBRATION] == 0
    assert after[Purpose.TRAINING] == before[Purpose.TRAINING] + before[Purpose.CALIBRATION]
    assert [j.name for j in lab.trainer.jobs] == [j.name for j in usual[1].trainer.jobs]
    run = PlannedRun(600, 64, ScriptedTrainer())
    phases = method("trace", calibration_rounds=0).plan(run).phases
    assert [(p.name, p.rollouts) for p in phases] == [("analysis", 64), ("training", 536)]


def test_training_tasks_join_the_environment_of_what_their_failures_lack() -> None:
    _, lab = fit(target_share=0.25)
    labels = lab.files["capabilities.json"]["labels"]
    assert len(lab.trainer.jobs) == 3
    for job in lab.trainer.jobs:
        own = [t.id for t in job.tasks if t.split == "train"]
        assert len(job.tasks) == 32 and len(own) == 8  # 24 are drawn
        lacking = {e["task"] for e in labels if e["labels"].get(job.name) == "LACKING"}
        assert set(own) <= lacking
        assert max(Counter(own).values()) - min(Counter(own).values()) <= 1


def seconds(tasks: Sequence[Task]) -> Counter[str]:
    """How many of the tasks need which second capability."""
    made = [t.id.split("/")[3].partition("+") for t in tasks if t.split == "synthetic"]
    return Counter(second for _, plus, second in made if plus)


@pytest.mark.parametrize("split", ["equal", "by_coverage"])
def test_a_share_of_an_environment_needs_a_second_capability(usual: Any, split: str) -> None:
    agent, lab = fit(pair_share=0.5, split=split)
    before = {j.name: j.tasks for j in usual[1].trainer.jobs}
    assert [j.name for j in lab.trainer.jobs] == list(before) and len(agent.adapters) == 3
    assert [c for c in lab.calls if c[1] is not Purpose.TRAINING] == [
        c for c in usual[1].calls if c[1] is not Purpose.TRAINING
    ], "analysis and calibration are the same"
    for job in lab.trainer.jobs:
        found = seconds(job.tasks)
        assert set(found) == set(before) - {job.name} and sum(found.values()) == 12
        assert max(found.values()) - min(found.values()) <= 1
        assert lab.files["capabilities.json"]["pairs"][job.name] == found
        assert len({t.id for t in job.tasks}) == len(job.tasks) == 24
        for old, new in zip(before[job.name], job.tasks, strict=True):
            assert old == new or (not old.data["contrast"] and len(new.data["requires"]) == 2)
    assert not any(seconds(tasks) for tasks in before.values())
    assert "pairs" not in usual[1].files["capabilities.json"]


def test_contrast_cases_are_never_replaced() -> None:
    _, lab = fit(pair_share=1.0)
    for job in lab.trainer.jobs:
        contrast = [t for t in job.tasks if t.data["contrast"]]
        assert len(contrast) == 5 and sum(seconds(job.tasks).values()) == len(job.tasks) - 5


def test_one_adapter_can_learn_from_them_too() -> None:
    lab = MemoryLab(HABITS, 600, 3)
    made = method("joint", **QUICK["joint"], pair_share=0.25)
    made.fit(BASE, lab.suite.tasks("train"), lab)
    (job,) = lab.trainer.jobs
    assert sum(seconds(job.tasks).values()) == 18  # six in each of three environments


def test_a_capability_that_is_alone_keeps_its_tasks() -> None:
    lab = MemoryLab({"disambiguates": 0.9}, 600, 3)
    made = method("trace", **QUICK["trace"], pair_share=0.5)
    made.fit(BASE, lab.suite.tasks("train"), lab)
    (job,) = lab.trainer.jobs
    assert not seconds(job.tasks)
    assert "tasks that need a second selected capability: disambiguates none" in lab.logged


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pair_share": 0.5, "synthesis": "select"}, "method.pair_share=0.5 is about tasks that"),
        ({"pair_share": 0.5, "max_capabilities": 1}, "method.max_capabilities=1 trains one"),
        ({"pair_share": 1.5}, "pair_share"),
        ({"target_share": 1.0}, "method.target_share=1 leaves no synthetic task"),
        ({"calibration_rounds": -1}, "calibration_rounds"),
        ({"trunk_share": 0.25}, "method.route=classifier adds adapters up"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        method("trace", **settings)


@pytest.mark.parametrize("name", ["calibration_rounds", "target_share", "pair_share"])
def test_a_models_environments_need_calibration_and_stand_alone(name: str) -> None:
    given: dict[str, Any] = (
        {"calibration_rounds": 0} if name == "calibration_rounds" else {name: 1 / 4}
    )
    run = PlannedRun(600, 64, ScriptedTrainer(), models=frozenset({"analyst", "generator"}))
    with pytest.raises(UserError, match=f"method.{name}="):
        method("trace", **given).plan(run)


# -- learning progress ----------------------------------------------------------------------------


def progress(*groups: Sequence[float]) -> Progress:
    """What was heard of groups of these rewards."""
    found = Progress("similarity")
    for n, rewards in enumerate(groups):
        task = Task(str(n), "e", "train", n)
        played = [
            Trajectory(task.id, 0, "a", (), (), (), StopReason.DONE, Score(r, r == 1.0))
            for r in rewards
        ]
        found.hear([task] * len(played), played)
    return found


def test_what_learns_gets_more_and_what_is_saturated_nothing() -> None:
    learns, stands = progress((0.0, 0.2), (0.6, 0.8)), progress((0.4, 0.6), (0.4, 0.6))
    falls, full = progress((0.8, 1.0), (0.2, 0.0)), progress((0.0, 1.0), (1.0, 1.0))
    assert learns.gain() == pytest.approx(0.6) and stands.gain() == falls.gain() == 0.0
    assert [p.saturated() for p in (learns, stands, falls, full)] == [False, False, False, True]
    assert weights([learns, stands, falls, full]) == pytest.approx([1 / 6 + 0.5, 1 / 6, 1 / 6, 0])
    assert weights([stands, falls]) == [0.5, 0.5] and weights([full, full]) == [0.0, 0.0]
    assert not Progress("similarity").saturated() and weights([Progress("similarity")]) == [1.0]


def test_the_second_half_goes_on_from_the_first(usual: Any) -> None:
    agent, lab = fit(split="progress")
    jobs = {j.name: j for j in lab.trainer.jobs}
    firsts = [j for name, j in jobs.items() if not name.endswith("-more")]
    total = spent(usual[1])[Purpose.TRAINING]
    assert sum(j.rollouts for j in firsts) == total - total // 2
    (said,) = [text for text in lab.logged if text.startswith("learning progress: ")]
    for job in firsts:
        more = jobs.get(f"{job.name}-more")
        assert (more is None) == (f"{job.name} saturated (0% of the rest)" in said)
        assert more is None or [a.name for a in more.agent.adapters] == [f"{job.name}-v1"]
    assert len({a.capability for a in agent.adapters}) == len(agent.adapters) == len(firsts)


def test_adapters_start_from_a_joint_trunk(usual: Any) -> None:
    agent, lab = fit(route="retrieval", trunk_share=0.3, minimum_training=40)
    trunk, *others = lab.trainer.jobs
    left = spent(lab)[Purpose.TRAINING]
    assert (trunk.name, trunk.rollouts) == ("trunk", int(0.3 * left))
    assert {t.id for t in trunk.tasks} == {t.id for j in others for t in j.tasks}
    assert all([a.name for a in j.agent.adapters] == ["trunk-v1"] for j in others)
    assert "trunk-v1" not in [a.name for a in agent.adapters]
    _, small = fit(route="retrieval", trunk_share=0.3, minimum_training=140)
    assert "trunk" not in [j.name for j in small.trainer.jobs], "nothing is left for it"


def test_parts_that_are_too_small_for_the_trainer_are_refused_beforehand() -> None:
    trainer = LocalTrainer(TrainerSettings(group_size=16), threads=1)
    run = PlannedRun(1280, 64, trainer)
    with pytest.raises(UserError, match="in parts of 23 rollouts or more, a quarter of "):
        method("trace", split="progress").plan(run)
    method("trace", split="progress", minimum_training=132).plan(run)
