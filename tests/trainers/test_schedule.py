"""What a job plays is decided before it starts."""

from __future__ import annotations

from collections import Counter

import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.types import Task
from trace_bench.trainers.course import Course, make_schedule, task_of_group
from trace_bench.trainers.settings import TrainerSettings

S = TrainerSettings(group_size=8, groups=4, learning_rate=1.0)


@pytest.mark.parametrize(
    ("rollouts", "groups", "unspent"),
    [
        (640, (4,) * 20, 0),
        (64 + 24, (4, 4, 3), 0),
        (64 + 23, (4, 4, 2), 7),
        (64 + 15, (4, 4), 15),  # one group more is not worth an iteration
        (16, (2,), 0),
        (31, (3,), 7),
    ],
)
def test_iterations_and_what_remains(rollouts, groups, unspent) -> None:
    schedule = make_schedule(rollouts, S, "x")
    assert schedule == groups
    assert sum(schedule) * 8 + unspent == rollouts


def test_one_group_an_iteration_is_allowed() -> None:
    one = TrainerSettings(group_size=8, groups=1)
    assert make_schedule(20, one, "x") == (1, 1)


def test_too_few_rollouts_says_how_many_are_needed() -> None:
    with pytest.raises(UserError, match=r"'x' has 15 rollouts and needs at least 16 \(2 groups"):
        make_schedule(15, S, "x")


def test_the_rate_falls_linearly_to_the_end_of_the_budget() -> None:
    course = Course([Task("0", "e", "train", 0)], S, 1, 88, "x")
    rates = []
    while tasks := course.begin():
        rates.append(course.rate())
        course.played(tasks, [0.0] * 8 * len(tasks))
    assert rates == pytest.approx([1.0, 1 - 32 / 88, 1 - 64 / 88])
    constant = TrainerSettings(decay="constant", learning_rate=0.5)
    assert Course([Task("0", "e", "train", 0)], constant, 1, 88, "x").rate() == 0.5


def test_every_epoch_is_another_shuffle_of_all_tasks() -> None:
    tasks = [Task(str(i), "e", "train", i) for i in range(10)]
    order = [task_of_group(g, tasks, seed=1).id for g in range(30)]
    assert Counter(order) == {str(i): 3 for i in range(10)}
    assert len({tuple(order[i : i + 10]) for i in (0, 10, 20)}) == 3
    assert order == [task_of_group(g, tasks, seed=1).id for g in range(30)]
    assert order != [task_of_group(g, tasks, seed=2).id for g in range(30)]
