"""What of an iteration's episodes is trained on: whether an episode can be, its reward, whether its
tokens fit, and the groups whose rewards are compared."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from trace_bench.checklists.rewards import Assignment, Rollout, reward, rollout_of
from trace_bench.core.checked import build
from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Trajectory
from trace_bench.trainers.algorithms import SAME

T = TypeVar("T")

DRAWN = "drawn"  # at random, in method=placebo
REWARDS = ("similarity", "success", DRAWN)


class Rewarded(Protocol):
    """What says how episodes are rewarded: a `TrainingJob`, or a description of one."""

    @property
    def reward(self) -> str: ...
    @property
    def assignment(self) -> Mapping[str, Any] | None: ...


def exact(trajectory: Trajectory) -> bool:
    """Whether all sampled tokens and their log-probabilities are known: servers may give none."""
    return all(t.token_ids and len(t.token_ids) == len(t.logprobs) for t in trajectory.turns)


def usable(trajectory: Trajectory) -> bool:
    """Whether an episode can be trained on: not lost by the infrastructure, and `exact`."""
    return trajectory.score is not None and trajectory.failure is None and exact(trajectory)


def earned(trajectories: Sequence[Trajectory], job: Rewarded) -> list[float]:
    """The rewards of a job's episodes: a field of the score or, with an assignment, what the
    checklists say; NaN for one in no baseline. Raises UserError for scores without a checklist."""
    if job.assignment is None:
        return [reward_of(t, job.reward) for t in trajectories]
    how = build(Assignment, job.assignment, "method")
    rollouts = [usable_rollout(t) for t in trajectories]
    return [math.nan if rollout is None else reward(rollout, how) for rollout in rollouts]


def reward_of(trajectory: Trajectory, reward: str) -> float:
    """The reward, a field of the score; NaN, which is in no baseline, unless it is `usable`."""
    return paid(trajectory, reward) if usable(trajectory) else math.nan


def paid(trajectory: Trajectory, reward: str) -> float:
    """The reward of an episode that has a score; a random one follows from the episode's seed."""
    if reward == DRAWN:
        return random.Random(stable_seed(trajectory.seed, "reward")).random()
    return float(getattr(trajectory.score, reward))


def usable_rollout(trajectory: Trajectory) -> Rollout | None:
    """What an episode's advantages by checklists depend on; None for one that is not `usable`."""
    if not usable(trajectory):
        return None
    if (rollout := rollout_of(trajectory)) is None:
        raise UserError(
            f"{trajectory.task}: its score has no checklist, from which the method takes its "
            "advantages. Set `env` to recorded, or `method` to one without checklists."
        )
    return rollout


def in_groups(values: Sequence[T], size: int) -> list[Sequence[T]]:
    """What an iteration's rollouts have, group by group."""
    return [values[first : first + size] for first in range(0, len(values), size)]


def differ(rewards: Sequence[float]) -> bool:
    """Whether a group has a learning signal: two episodes or more whose rewards differ."""
    valid = [r for r in rewards if r == r]
    return len(valid) > 1 and max(valid) - min(valid) > SAME


def check_prompt(trajectory: Trajectory) -> None:
    """Raises TraceBenchError if a turn has no prompt tokens, or keeps more than there are."""
    tokens = 0
    for n, turn in enumerate(trajectory.turns if exact(trajectory) else ()):
        kept = tokens if turn.kept is None else turn.kept
        if kept > tokens or not kept + len(turn.prompt_ids):
            why = f"keeps {kept} of {tokens} tokens" if kept else "has no prompt tokens"
            raise TraceBenchError(f"{trajectory.task}: turn {n + 1} {why}")
        tokens = kept + len(turn.prompt_ids) + len(turn.token_ids)
