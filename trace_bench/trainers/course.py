"""The course of a training job: which tasks it runs next, how many, and what it has spent.

With `order=shuffled` and `resample=0` all of it is known beforehand (`make_schedule`). The other
settings look at the rewards of groups that were run; they draw from the job's seed and these
rewards alone, so that a job that is resumed takes the same course again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from trace_bench.core.store import stable_seed
from trace_bench.core.types import Task
from trace_bench.trainers.schedule import epoch, make_schedule, task_of_group
from trace_bench.trainers.settings import TrainerSettings

SAME = 1e-8  # rewards closer than this are equal
FLOOR = 0.125  # smallest chance of a task, of one whose groups differ: it may differ again


class Course:
    """`rollouts`: the most that the job may spend. Raises UserError if they are too few for one
    iteration. `spent`: rollouts so far; `begun`: rollouts before the current iteration."""

    def __init__(
        self, tasks: Sequence[Task], settings: TrainerSettings, seed: int, rollouts: int, name: str
    ) -> None:
        self.tasks, self.settings, self.seed, self.rollouts = tasks, settings, seed, rollouts
        schedule = make_schedule(rollouts, settings, name)
        self.total = rollouts - schedule.unspent
        self.spent = self.begun = 0
        self._groups = 0  # run so far
        self._epoch, self._queue = -1, list[int]()  # order=skipping: what is left of an epoch
        self._equal: dict[str, int] = {}  # task id -> how many of its latest groups were constant

    def iterations_left(self) -> bool:
        """Whether the rollouts pay for another iteration."""
        return self._affordable() >= min(2, self.settings.groups)

    def begin(self) -> list[Task]:
        """The tasks of the next iteration's groups; empty if nothing is left for one."""
        self.begun = self.spent
        return self._next(self._affordable()) if self.iterations_left() else []

    def more(self, differing: int) -> list[Task]:
        """The tasks of the groups that take the place of an iteration's constant ones, of which
        `differing` were not: as many as are missing and can be paid for."""
        return self._next(min(self.settings.groups - differing, self._affordable()))

    def played(self, tasks: Sequence[Task], rewards: Sequence[Sequence[float]]) -> int:
        """Takes note of the rewards of groups (NaN: a lost episode), one group a task; returns how
        many of the groups differ."""
        found = [differ(group) for group in rewards]
        for task, differs in zip(tasks, found, strict=True):
            self._equal[task.id] = 0 if differs else self._equal.get(task.id, 0) + 1
        self.spent += len(tasks) * self.settings.group_size
        return sum(found)

    def rate(self) -> float:
        """The learning rate of the current iteration: falls linearly with the rollouts spent before
        it, to 0."""
        if self.settings.decay == "constant":
            return self.settings.learning_rate
        return self.settings.learning_rate * (1.0 - self.begun / self.total)

    def _affordable(self) -> int:
        left = (self.rollouts - self.spent) // self.settings.group_size
        return min(self.settings.groups, left)

    def _next(self, count: int) -> list[Task]:
        order = self.settings.order
        if order == "prioritized":
            chosen = self._prioritized(count)
        elif order == "skipping":
            chosen = [self._unskipped() for _ in range(count)]
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

    def _unskipped(self) -> Task:
        """The next task of the shuffled order, without those whose latest group was constant; they
        sit out one epoch. An epoch in which all would sit out is run whole."""
        while not self._queue:
            self._epoch += 1
            order = epoch(len(self.tasks), self.seed, self._epoch)
            kept = [i for i in order if not self._equal.get(self.tasks[i].id)]
            for index in set(order) - set(kept):
                self._equal[self.tasks[index].id] = 0
            self._queue = kept or order
        return self.tasks[self._queue.pop(0)]


def differ(rewards: Sequence[float]) -> bool:
    """Whether a group has a learning signal: at least two episodes left, and not all rewards
    equal."""
    valid = [r for r in rewards if r == r]
    return len(valid) > 1 and max(valid) - min(valid) > SAME
