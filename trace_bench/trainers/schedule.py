"""A training job's schedule, fixed before it starts: iterations and the order of tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trace_bench.core.errors import UserError
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Task
from trace_bench.trainers.settings import Recipe, TrainerSettings


@dataclass(frozen=True)
class Schedule:
    """`groups[i]`: number of groups in iteration i. `unspent`: rollouts left at the end, too few
    for another iteration."""

    groups: tuple[int, ...]
    unspent: int


def make_schedule(rollouts: int, settings: TrainerSettings, name: str) -> Schedule:
    """As many full iterations as fit, then a smaller one if at least two groups fit: the whole job
    where no group is sampled again. Raises UserError if `rollouts` are too few for one
    iteration."""
    size = settings.group_size
    least = min(2, settings.groups)
    full, rest = divmod(rollouts, size * settings.groups)
    last = rest // size
    groups = (settings.groups,) * full + ((last,) if last >= least else ())
    if not groups:
        raise UserError(
            f"training {name!r} has {rollouts} rollouts and needs at least {least * size} "
            f"({least} groups of {size}). Raise the setting `budget`, or lower "
            "`trainer.group_size`."
        )
    return Schedule(groups, rollouts - size * sum(groups))


def task_of_group(group: int, tasks: Sequence[Task], seed: int) -> Task:
    """The task of the job's `group`-th group: each epoch over the tasks is a seeded shuffle."""
    number, place = divmod(group, len(tasks))
    return tasks[epoch(len(tasks), seed, number)[place]]


def epoch(count: int, seed: int, number: int) -> list[int]:
    """The places of `count` tasks in the shuffled order of an epoch."""
    order = list(range(count))
    random.Random(stable_seed(seed, "order", number)).shuffle(order)
    return order


def curve_caveat(recipe: Recipe, rollouts: int, points: Sequence[int]) -> str | None:
    """Why the agent at one of the rollout counts `points` differs from the result of a job with
    only that many rollouts; None if it does not. With a constant learning rate the agents are the
    same at the ends of iterations."""
    if recipe.decay == "linear":
        return "the learning rate falls over the whole budget (trainer.decay=linear)"
    if recipe.resample:
        return "constant groups are sampled again, so iterations differ in size (trainer.resample)"
    size = recipe.group_size * recipe.groups
    if any(point % size for point in points if point < rollouts):
        return (
            f"between iterations of {size} rollouts it is the agent of the iteration before, "
            "where a run of that budget may train on part of one more"
        )
    return None
