"""What of an episode is trained on: whether it can be, its reward, and whether its tokens fit."""

from __future__ import annotations

import random

from trace_bench.core.errors import TraceBenchError
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Trajectory

DRAWN = "drawn"  # at random, in method=placebo
REWARDS = ("similarity", "success", DRAWN)


def exact(trajectory: Trajectory) -> bool:
    """Whether all sampled tokens and their log-probabilities are known: servers may give none."""
    return all(t.token_ids and len(t.token_ids) == len(t.logprobs) for t in trajectory.turns)


def usable(trajectory: Trajectory) -> bool:
    """Whether an episode can be trained on: not lost by the infrastructure, and `exact`."""
    return trajectory.score is not None and trajectory.failure is None and exact(trajectory)


def reward_of(trajectory: Trajectory, reward: str) -> float:
    """The reward, a field of the score; NaN, which is in no baseline, unless it is `usable`."""
    return paid(trajectory, reward) if usable(trajectory) else float("nan")


def paid(trajectory: Trajectory, reward: str) -> float:
    """The reward of an episode that has a score; a random one follows from the episode's seed."""
    if reward == DRAWN:
        return random.Random(stable_seed(trajectory.seed, "reward")).random()
    return float(getattr(trajectory.score, reward))


def check_turns(trajectory: Trajectory, adapter: str | None) -> None:
    """Raises TraceBenchError unless all turns come from `adapter` and have a prompt."""
    for turn in trajectory.turns:
        if turn.adapter != adapter:
            raise TraceBenchError(
                f"{trajectory.task}: expected turns of adapter {adapter!r}, got {turn.adapter!r}"
            )
    check_prompt(trajectory)


def check_prompt(trajectory: Trajectory) -> None:
    """Raises TraceBenchError if a turn has no prompt tokens, or keeps more than there are."""
    tokens = 0
    for n, turn in enumerate(trajectory.turns if exact(trajectory) else ()):
        kept = tokens if turn.kept is None else turn.kept
        if kept > tokens or not kept + len(turn.prompt_ids):
            why = f"keeps {kept} of {tokens} tokens" if kept else "has no prompt tokens"
            place = "the first turn" if not n else f"turn {n + 1}"
            raise TraceBenchError(f"{trajectory.task}: {place} {why}")
        tokens = kept + len(turn.prompt_ids) + len(turn.token_ids)
