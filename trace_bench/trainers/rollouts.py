"""The rollouts of an iteration: groups of episodes by one version of the adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, PlayElsewhere, TrainingJob
from trace_bench.core.types import AgentSpec, Purpose, Task, Trajectory
from trace_bench.trainers.course import Course
from trace_bench.trainers.episodes import check_turns, exact


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
) -> Rollouts:
    """Plays what the course says, all turns by `adapter`; its calls in the ledger begin with
    `call`. `by`: what plays a call of so many episodes elsewhere; `ended`: is told of a call when
    all its episodes are recorded. Raises UserError for a policy that gives no tokens."""
    from trace_bench.trainers.credit import earned

    rollouts, settings = Rollouts(), course.settings

    def play(name: str, groups: Sequence[Task]) -> list[float]:
        tasks = [task for task in groups for _ in range(settings.group_size)]
        played = lab.rollouts(
            name,
            agent,
            tasks,
            purpose=Purpose.TRAINING,
            temperature=1.0,
            route=[adapter] * len(tasks),
            by=None if by is None else by(name, len(tasks)),
        )
        for trajectory in played:
            check_turns(trajectory, adapter)
        if by is None and not any(map(exact, played)):
            raise UserError(
                "the policy gives no token ids with log-probabilities, so nothing can be "
                "trained on its rollouts. Change the setting `policy`."
            )
        ended(name, len(tasks))
        rewards = earned(played, job, settings)
        rollouts.trajectories.extend(played)
        rollouts.rewards.extend(rewards)
        return rewards

    course.iteration(call, play)
    return rollouts
