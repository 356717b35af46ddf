"""Which tasks a job plays next, how many, at which rate, and what is sampled again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from letters import SETTINGS, LettersSuite, job, make_lab, task

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines
from trace_bench.core.types import Task
from trace_bench.trainers.course import Course, make_schedule, task_of_group
from trace_bench.trainers.job import differ
from trace_bench.trainers.local import TrainerSettings

S = TrainerSettings(group_size=2, groups=3, learning_rate=1.0)
TASKS = [Task(str(i), "e", "train", i) for i in range(6)]
DIFFER, EQUAL, LOST = (0.0, 1.0), (0.5, 0.5), (math.nan, 1.0)


def course(rollouts: int, **settings: Any) -> Course:
    return Course(TASKS, replace(S, **settings), 7, rollouts, "x")


def flat(*groups: Sequence[float]) -> list[float]:
    return [reward for group in groups for reward in group]


def test_a_group_differs_if_two_episodes_do() -> None:
    assert [differ(g) for g in (DIFFER, EQUAL, LOST, (0.5, 0.5 + 1e-9), ())] == [
        True, False, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rollouts", "groups"),
    [(60, (3,) * 10), (40, (3,) * 6 + (2,)), (43, (3,) * 7), (21, (3,) * 3), (4, (2,))],
)
def test_a_course_is_the_schedule_that_was_planned(rollouts: int, groups: tuple[int, ...]) -> None:
    """A single group that is left is not worth an iteration. The rate falls to the end."""
    assert make_schedule(rollouts, S, "x") == groups
    run, before = course(rollouts), 0
    for count in groups:
        assert run.begin() == [task_of_group(before + i, TASKS, 7) for i in range(count)]
        assert run.rate() == 1.0 - before / sum(groups)
        run.played(TASKS[:count], flat(*[EQUAL] * count))
        before += count
        assert run.spent == 2 * before
    assert not run.iterations_left() and run.begin() == []
    assert course(rollouts, decay="constant").rate() == 1.0


def test_too_few_rollouts_says_how_many_are_needed() -> None:
    with pytest.raises(UserError, match=r"'x' has 3 rollouts and needs at least 4 \(2 groups"):
        make_schedule(3, S, "x")
    assert make_schedule(3, replace(S, groups=1), "x") == (1,)


def test_every_epoch_is_another_shuffle_of_all_tasks() -> None:
    order = [task_of_group(g, TASKS, seed=1).id for g in range(18)]
    assert Counter(order) == {str(i): 3 for i in range(6)}
    assert len({tuple(order[i : i + 6]) for i in (0, 6, 12)}) == 3
    assert order != [task_of_group(g, TASKS, seed=2).id for g in range(18)]


def test_constant_groups_are_replaced_as_far_as_is_paid_for() -> None:
    run, calls = course(2 * 8, resample=2), list[tuple[str, int]]()

    def play(call: str, tasks: Sequence[Task]) -> list[float]:
        calls.append((call, len(tasks)))
        return flat(*[LOST] * (len(tasks) - 1), DIFFER)

    run.iteration("a", play)
    assert calls == [("a", 3), ("a/again1", 2), ("a/again2", 1)] and run.spent == 12
    run.iteration("b", play)
    assert calls[3:] == [("b", 2)] and run.begun == 12 and not run.iterations_left()


@pytest.mark.slow
def test_what_is_sampled_again_is_charged_after_a_stop(small_model: Path, tmp_path: Path) -> None:
    """One of four tasks is always lost, so its groups have no signal."""
    whole = trained(tmp_path / "whole", small_model)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", small_model, stop=6)
    assert trained(tmp_path / "stopped", small_model) == whole
    metrics = read_lines(tmp_path / "whole" / "metrics.jsonl")
    lines = [m for m in metrics if m["phase"] == "training"]
    assert len(whole[0]) == lines[-1]["spent"] == sum(m["groups"] for m in lines) * 6 <= 96
    assert any("/again" in call for call in whole[0])
    assert all(m["learning_rate"] > 0 for m in lines)


def trained(folder: Path, model: Path, stop: int = 0) -> tuple[list[str], bytes]:
    """(calls, weights); interrupted at the call number `stop`."""
    settings = replace(SETTINGS, resample=1)
    lab = make_lab(folder, model, 96, settings, suite=LettersSuite(broken=[task(0).id]))
    real, calls = lab.rollouts, list[str]()

    def counted(call: str, *rest: Any, **named: Any) -> Any:
        calls.append(call)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return real(call, *rest, **named)

    lab.rollouts = counted  # type: ignore[method-assign]
    try:
        agent = lab.trainer.train(job(model, 96), lab)
    finally:
        lab.close()
    lines = [str(line["call"]) for line in read_lines(folder / "ledger.jsonl")]
    return lines, (Path(agent.adapters[-1].path) / "adapter_model.safetensors").read_bytes()
