"""The course of a training job: which tasks it runs next, how many, and what it has spent.

With `order=shuffled` and `resample=0` all of it is known beforehand (`make_schedule`). The other
settings depend on the job's seed and the rewards of groups that were run alone, so that a job that
is resumed takes the same course again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from trace_bench.core.errors import UserError
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Task
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.groups import differ, in_groups

FLOOR = 0.125  # smallest chance of a task, of one whose groups differ: it may differ again


class Course:
    """`rollouts`: the most that the job may spend. Raises UserError if they are too few for one
    iteration. `spent`: rollouts so far; `begun`: rollouts before the current iteration."""

    def __init__(
        self, tasks: Sequence[Task], settings: Recipe, seed: int, rollouts: int, name: str
    ) -> None:
        self.tasks, self.settings, self.seed, self.rollouts = tasks, settings, seed, rollouts
        self.total = settings.group_size * sum(make_schedule(rollouts, settings, name))
        self.spent = self.begun = 0
        self._groups = 0  # run so far
        self._equal: dict[str, int] = {}  # task id -> how many of its latest groups were constant

    def iterations_left(self) -> bool:
        """Whether the rollouts pay for another iteration."""
        return self._affordable() >= min(2, self.settings.groups)

    @property
    def adapts(self) -> bool:
        """Whether rewards decide what comes next."""
        return self.settings.order != "shuffled" or self.settings.resample > 0

    def iteration(self, call: str, play: Callable[[str, list[Task]], Sequence[float]]) -> None:
        """One iteration. `play` runs a group of each of some tasks under the name of a call and
        returns the rewards (NaN: a lost episode), group by group. With `resample` constant groups
        are followed by others in their place, by the same version of the adapter."""
        tasks = self.begin()
        differing = self.played(tasks, play(call, tasks))
        for again in range(1, self.settings.resample + 1):
            if not (tasks := self.more(differing)):
                break
            differing += self.played(tasks, play(f"{call}/again{again}", tasks))

    def begin(self) -> list[Task]:
        """The tasks of the next iteration's groups; empty if nothing is left for one."""
        self.begun = self.spent
        return self._next(self._affordable()) if self.iterations_left() else []

    def more(self, differing: int) -> list[Task]:
        """The tasks of the groups that take the place of an iteration's constant ones, of which
        `differing` were not: as many as are missing and can be paid for."""
        return self._next(min(self.settings.groups - differing, self._affordable()))

    def played(self, tasks: Sequence[Task], rewards: Sequence[float]) -> int:
        """Takes note of the rewards of a group for each task; returns how many differ."""
        learned = [differ(group) for group in in_groups(rewards, self.settings.group_size)]
        for task, differs in zip(tasks, learned, strict=True):
            self._equal[task.id] = 0 if differs else self._equal.get(task.id, 0) + 1
        self.spent += len(tasks) * self.settings.group_size
        return sum(learned)

    def rate(self) -> float:
        """The learning rate of this iteration: linear in the rollouts spent before it, to 0."""
        if self.settings.decay == "constant":
            return self.settings.learning_rate
        return self.settings.learning_rate * (1.0 - self.begun / self.total)

    def _affordable(self) -> int:
        left = (self.rollouts - self.spent) // self.settings.group_size
        return min(self.settings.groups, left)

    def _next(self, count: int) -> list[Task]:
        if self.settings.order == "prioritized":
            chosen = self._prioritized(count)
        else:
            groups = range(self._groups, self._groups + count)
            chosen = [task_of_group(g, self.tasks, self.seed) for g in groups]
        self._groups += count
        return chosen

    def _prioritized(self, count: int) -> list[Task]:
        """Tasks that were never run, in the shuffled order, then draws in which the chance of a
        task halves with each of its latest groups that was constant, down to `FLOOR`."""
        order = [self.tasks[i] for i in epoch(len(self.tasks), self.seed, 0)]
        unique = {task.id: task for task in order}
        chosen = [task for name, task in unique.items() if name not in self._equal]
        rng = random.Random(stable_seed(self.seed, "prioritized", self._groups))
        keys: list[tuple[float, str]] = []
        for name in sorted(self._equal):
            chance = max(FLOOR, 0.5 ** self._equal[name])
            keys.append((math.log(1.0 - rng.random()) / chance, name))
        keys.sort(reverse=True)  # Efraimidis and Spirakis 2006: draws without replacement
        chosen += [unique[name] for _, name in keys]
        return [chosen[n % len(chosen)] for n in range(count)]


def make_schedule(rollouts: int, settings: Recipe, name: str) -> tuple[int, ...]:
    """The number of groups in each iteration: as many full ones as fit, then a smaller one if at
    least two groups fit; the whole job where no group is sampled again. Raises UserError if not
    even one iteration fits."""
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
    return groups


def task_of_group(group: int, tasks: Sequence[Task], seed: int) -> Task:
    """The task of the job's `group`-th group: each epoch over the tasks is a seeded shuffle."""
    number, place = divmod(group, len(tasks))
    return tasks[epoch(len(tasks), seed, number)[place]]


def epoch(count: int, seed: int, number: int) -> list[int]:
    """The places of `count` tasks in the shuffled order of an epoch."""
    order = list(range(count))
    random.Random(stable_seed(seed, "order", number)).shuffle(order)
    return order


def curve_caveat(
    recipe: Recipe, rollouts: int, points: Sequence[int], every: int = 1
) -> str | None:
    """Why the agent at one of the rollout counts `points` differs from the result of a job with
    only that many rollouts; None if it does not, as at ends of iterations at a constant rate.
    `every`: iterations between the versions that are kept."""
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
    if any(point % (size * every) for point in points if point < rollouts):
        return f"between checkpoints it is the agent of the one before (trainer.save_every={every})"
    return None
