"""The course of a training job: which tasks it plays next, how many, and what it has spent.

With `resample=0` all of it is known beforehand (`make_schedule`). Else it depends on the rewards of
groups that were played, so that a job that is resumed takes the same course again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.protocols import Lab, PlayElsewhere, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Purpose, Task, Trajectory
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.job import check_prompt, differ, earned, exact, in_groups


class Course:
    """`rollouts`: the most that the job may spend. Raises UserError if they are too few for one
    iteration. `spent`: rollouts so far; `begun`: rollouts before the current iteration."""

    def __init__(
        self, tasks: Sequence[Task], settings: Recipe, seed: int, rollouts: int, name: str
    ) -> None:
        self.tasks, self.settings, self.seed, self.rollouts = tasks, settings, seed, rollouts
        self.total = settings.group_size * sum(make_schedule(rollouts, settings, name))
        self.spent = self.begun = 0

    def iterations_left(self) -> bool:
        """Whether the rollouts pay for another iteration."""
        return self._affordable() >= min(2, self.settings.groups)

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
        """Takes note of the rewards of a group for each task; returns how many groups differ."""
        self.spent += len(tasks) * self.settings.group_size
        return sum(map(differ, in_groups(rewards, self.settings.group_size)))

    def rate(self) -> float:
        """The learning rate of this iteration: linear in the rollouts spent before it, to 0."""
        if self.settings.decay == "constant":
            return self.settings.learning_rate
        return self.settings.learning_rate * (1.0 - self.begun / self.total)

    def _affordable(self) -> int:
        left = (self.rollouts - self.spent) // self.settings.group_size
        return min(self.settings.groups, left)

    def _next(self, count: int) -> list[Task]:
        first = self.spent // self.settings.group_size
        return [task_of_group(g, self.tasks, self.seed) for g in range(first, first + count)]


def make_schedule(rollouts: int, settings: Recipe, name: str) -> tuple[int, ...]:
    """The number of groups in each iteration: as many full ones as fit, then a smaller one if at
    least two groups fit; all where no group is sampled again. UserError without any."""
    size = settings.group_size
    least = min(2, settings.groups)
    full, rest = divmod(rollouts, size * settings.groups)
    last = rest // size
    groups = (settings.groups,) * full + ((last,) if last >= least else ())
    if not groups:
        raise settings.too_few(name, rollouts, least)
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


@dataclass(frozen=True)
class Rollouts:
    """An iteration's episodes, group by group, and their rewards (NaN: of one in no baseline)."""

    trajectories: list[Trajectory] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def play_iteration(
    course: Course,
    call: str,
    agent: AgentSpec,
    adapter: str | None,
    job: TrainingJob,
    lab: Lab,
    by: Callable[[str, int], PlayElsewhere] | None = None,
    ended: Callable[[str, int], None] = lambda call, count: None,
    routed: bool = False,
) -> Rollouts:
    """Plays what the course says, all turns by `adapter`, or, `routed`, by what the agent's router
    chooses; its calls in the ledger begin with `call`. `by`: what plays a call of so many episodes
    elsewhere; `ended`: is told of a call when all its episodes are recorded. Raises UserError for
    a policy that gives no tokens."""
    rollouts, settings = Rollouts(), course.settings

    def play(name: str, groups: Sequence[Task]) -> list[float]:
        tasks = [task for task in groups for _ in range(settings.group_size)]
        route = None if routed else [adapter] * len(tasks)
        elsewhere = None if by is None else by(name, len(tasks))
        played = lab.rollouts(
            name, agent, tasks, purpose=Purpose.TRAINING, route=route, by=elsewhere
        )
        for trajectory in played:
            if not routed:
                check_adapter(trajectory, adapter)
            check_prompt(trajectory)
        if by is None and not any(map(exact, played)):
            raise UserError(
                "the policy gives no token ids with log-probabilities, so nothing can be "
                "trained on its rollouts. Change the setting `policy`."
            )
        ended(name, len(tasks))
        rewards = earned(played, job)
        rollouts.trajectories.extend(played)
        rollouts.rewards.extend(rewards)
        return rewards

    course.iteration(call, play)
    return rollouts


def check_adapter(trajectory: Trajectory, adapter: str | None) -> None:
    """Raises TraceBenchError unless all turns come from `adapter`."""
    for turn in trajectory.turns:
        if turn.adapter != adapter:
            raise TraceBenchError(
                f"{trajectory.task}: expected turns of adapter {adapter!r}, got {turn.adapter!r}"
            )
