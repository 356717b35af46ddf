"""What trainers say of an iteration's rollouts, whoever played them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import TraceBenchError
from trace_bench.core.types import Trajectory

if TYPE_CHECKING:
    from trace_bench.trainers.grpo import Advantages

REWARDS = ("similarity", "success")


def exact(trajectory: Trajectory) -> bool:
    """Whether all sampled tokens are known with their log-probabilities. A server may rewrite a
    conversation between turns, and then says nothing exact about it any more."""
    return all(t.token_ids and len(t.token_ids) == len(t.logprobs) for t in trajectory.turns)


def reward_of(trajectory: Trajectory, reward: str) -> float:
    """NaN for an episode that the infrastructure lost, or whose exact tokens are not known: it
    leaves its group's baseline."""
    if trajectory.score is None or trajectory.failure is not None or not exact(trajectory):
        return float("nan")
    return float(getattr(trajectory.score, reward))


def check_turns(trajectory: Trajectory, adapter: str | None) -> None:
    """Training needs turns of the adapter that was asked for, from the first token on."""
    for turn in trajectory.turns:
        if turn.adapter != adapter:
            raise TraceBenchError(
                f"{trajectory.task} was to be played by {adapter!r}; {turn.adapter!r} acted"
            )
    if exact(trajectory) and trajectory.turns and not trajectory.turns[0].prompt_ids:
        raise TraceBenchError(f"{trajectory.task}: the first turn has no prompt tokens")


def of_rollouts(
    trajectories: Sequence[Trajectory], reward: str, found: Advantages
) -> dict[str, Any]:
    """Mean reward and success, and the shares of groups that teach nothing (`found`)."""
    scores = [t.score for t in trajectories if t.score is not None and t.failure is None]
    return {
        "reward": _mean([float(getattr(s, reward)) for s in scores]),
        "success": _mean([float(s.success) for s in scores]),
        "zero_share": found.all_zero / found.groups,
        "one_share": found.all_one / found.groups,
        "constant_share": found.constant / found.groups,
        "failures": found.failed,
        "inexact": sum(not exact(t) for t in trajectories),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
