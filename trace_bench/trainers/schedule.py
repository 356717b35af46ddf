"""What a training job will play, decided before it starts: iterations and the order of tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trace_bench.core.errors import UserError
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Task
from trace_bench.trainers.settings import TrainerSettings


@dataclass(frozen=True)
class Schedule:
    """`groups[i]`: how many groups iteration i plays; `spent[i]`: rollouts spent before it.
    `unspent` is what is left at the end, too little for another iteration."""

    groups: tuple[int, ...]
    spent: tuple[int, ...]
    unspent: int

    def rate(self, iteration: int, settings: TrainerSettings) -> float:
        """The learning rate of an iteration: linear in the rollouts spent, 0 when all are."""
        if settings.decay == "constant":
            return settings.learning_rate
        total = self.spent[-1] + self.groups[-1] * settings.group_size
        return settings.learning_rate * (1.0 - self.spent[iteration] / total)


def plan(rollouts: int, settings: TrainerSettings, name: str) -> Schedule:
    """Full iterations as long as they fit; what remains is a last, smaller one when it is worth at
    least two groups. Raises UserError when `rollouts` does not pay for one iteration."""
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
    spent = tuple(size * sum(groups[:i]) for i in range(len(groups)))
    return Schedule(groups, spent, rollouts - size * sum(groups))


def task_of_group(group: int, tasks: Sequence[Task], seed: int) -> Task:
    """The task of the job's `group`-th group: every epoch over the tasks is a seeded shuffle."""
    epoch, place = divmod(group, len(tasks))
    order = list(range(len(tasks)))
    random.Random(stable_seed(seed, "order", epoch)).shuffle(order)
    return tasks[order[place]]
