"""Which tasks a job plays next, from the rewards of the groups that it has played."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from letters import SETTINGS, LettersSuite, job, make_lab, task
from models import save_model

from trace_bench.core.store import read_lines
from trace_bench.core.types import Task
from trace_bench.trainers.course import FLOOR, Course, make_schedule, task_of_group
from trace_bench.trainers.groups import differ
from trace_bench.trainers.settings import TrainerSettings

S = TrainerSettings(group_size=2, groups=3)
TASKS = [Task(str(i), "e", "train", i) for i in range(6)]
DIFFER, EQUAL, LOST = (0.0, 1.0), (0.5, 0.5), (math.nan, 1.0)


def course(rollouts: int = 600, **settings: object) -> Course:
    return Course(TASKS, replace(S, **settings), 7, rollouts, "x")  # type: ignore[arg-type]


def flat(*groups: Sequence[float]) -> list[float]:
    return [reward for group in groups for reward in group]


def played(course: Course, signal: set[str], iterations: int) -> list[str]:
    """Ids in order; only the groups of the tasks `signal` differ."""
    out: list[str] = []
    for _ in range(iterations):
        tasks = course.begin()
        course.played(tasks, flat(*(DIFFER if t.id in signal else EQUAL for t in tasks)))
        out += [t.id for t in tasks]
    return out


def test_a_group_differs_if_two_episodes_do() -> None:
    assert [differ(g) for g in (DIFFER, EQUAL, LOST, (0.5, 0.5 + 1e-9), ())] == [
        True, False, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("rollouts", [6, 40, 43, 64])
def test_shuffled_is_the_schedule_that_was_planned(rollouts: int) -> None:
    settings = replace(S, learning_rate=1.0)
    schedule = make_schedule(rollouts, settings, "x")
    run = Course(TASKS, settings, 7, rollouts, "x")
    group = spent = 0
    for count in schedule:
        tasks = run.begin()
        assert run.rate() == 1.0 - spent / (sum(schedule) * settings.group_size)
        assert tasks == [task_of_group(group + i, TASKS, 7) for i in range(count)]
        run.played(tasks, flat(*[EQUAL] * count))
        group, spent = group + count, spent + 2 * count
        assert run.spent == spent
    assert not run.iterations_left() and run.begin() == []


def test_prioritized_plays_all_once_and_then_those_that_differ() -> None:
    first = played(course(order="prioritized"), {"1", "4"}, 100)
    assert sorted(first[:6]) == [t.id for t in TASKS]
    later = Counter(first[6:])
    assert min(later["1"], later["4"]) > 2 * max(later[n] for n in "0235")
    assert min(later.values()) > 294 * FLOOR / 6  # none is given up
    assert all(len(set(first[i : i + 3])) == 3 for i in range(0, 300, 3))
    assert first == played(course(order="prioritized"), {"1", "4"}, 100)


def test_more_tasks_than_there_are() -> None:
    run = Course(TASKS[:2], replace(S, order="prioritized"), 7, 60, "x")
    assert Counter(t.id for t in run.begin()).most_common(1)[0][1] == 2


def test_constant_groups_are_replaced_as_far_as_is_paid_for() -> None:
    run = course(rollouts=2 * 7)
    assert len(tasks := run.begin()) == 3
    assert run.played(tasks, flat(DIFFER, EQUAL, LOST)) == 1
    assert len(more := run.more(1)) == 2
    assert run.played(more, flat(EQUAL, DIFFER)) == 1
    assert len(run.more(2)) == 1 and run.more(3) == []
    assert run.spent == 10 and run.iterations_left()
    last = run.begin()
    assert len(last) == 2 and run.begun == 10
    run.played(last, flat(EQUAL, EQUAL))
    assert run.more(0) == []


def test_an_iteration_is_its_calls() -> None:
    run, calls = course(rollouts=2 * 8, resample=2), list[tuple[str, int]]()

    def play(call: str, tasks: Sequence[Task]) -> list[float]:
        calls.append((call, len(tasks)))
        return flat(*[EQUAL] * (len(tasks) - 1), DIFFER)

    run.iteration("a", play)
    assert calls == [("a", 3), ("a/again1", 2), ("a/again2", 1)] and run.spent == 12
    run.iteration("b", play)
    assert calls[3:] == [("b", 2)] and not run.iterations_left()


# -- in a real training ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"))


def test_what_is_sampled_again_is_charged(model: Path, tmp_path: Path) -> None:
    """Two of four tasks are always lost, so their groups have no signal."""
    settings = replace(SETTINGS, resample=2)
    suite = LettersSuite(broken=[task(0).id, task(1).id])
    lab = make_lab(tmp_path, model, 120, settings, suite=suite)
    lab.trainer.train(job(model, 120), lab)
    lab.close()
    ledger = read_lines(tmp_path / "ledger.jsonl")
    metrics = [m for m in read_lines(tmp_path / "metrics.jsonl") if m["phase"] == "training"]
    assert len(ledger) == metrics[-1]["spent"] == sum(m["groups"] for m in metrics) * 6 <= 120
    again = [line for line in ledger if "/again" in line["call"]]
    assert again and all(m["groups"] <= 2 * 3 for m in metrics)
    differing = [round(m["groups"] * (1 - m["constant_share"])) for m in metrics]
    assert sum(d == 2 for d in differing[:-1]) > len(differing) / 2
    assert all(m["learning_rate"] > 0 for m in metrics)


def test_a_course_is_taken_again_after_a_stop(model: Path, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", model)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", model, stop=6)
    assert trained(tmp_path / "stopped", model) == whole


def trained(folder: Path, model: Path, stop: int = 0) -> tuple[list[str], bytes]:
    """(calls, weights); interrupted at the call number `stop`."""
    settings = replace(SETTINGS, order="prioritized", resample=1)
    lab = make_lab(folder, model, 96, settings, suite=LettersSuite(broken=[task(0).id]))
    real, calls = lab.rollouts, list[str]()

    def counted(call: str, *given: Any, **named: Any) -> Any:
        calls.append(call)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return real(call, *given, **named)

    lab.rollouts = counted  # type: ignore[method-assign]
    try:
        agent = lab.trainer.train(job(model, 96), lab)
    finally:
        lab.close()
    lines = [str(line["call"]) for line in read_lines(folder / "ledger.jsonl")]
    return lines, (Path(agent.adapters[-1].path) / "adapter_model.safetensors").read_bytes()
