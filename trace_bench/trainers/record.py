"""Checks and metrics of an iteration's rollouts, shared by all trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import TraceBenchError, UserError, unknown
from trace_bench.core.protocols import TrainingJob
from trace_bench.core.types import Trajectory

if TYPE_CHECKING:
    from trace_bench.trainers.grpo import Advantages

REWARDS = ("similarity", "success")


def check_job(job: TrainingJob) -> None:
    """Raises UserError for an unknown reward or a job without tasks, and ValueError if the agent
    has an adapter of that name already."""
    if job.reward not in REWARDS:
        raise unknown("reward", job.reward, REWARDS, "method.reward")
    if not job.tasks:
        raise UserError(f"training {job.name!r} has no tasks; check the setting `env`.")
    if any(a.name.partition("@")[0] == job.name for a in job.agent.adapters):
        raise ValueError(f"the agent has an adapter {job.name!r} already; names are used once")


def exact(trajectory: Trajectory) -> bool:
    """Whether all sampled tokens and their log-probabilities are known. They are not if a server
    has rewritten the conversation between turns."""
    return all(t.token_ids and len(t.token_ids) == len(t.logprobs) for t in trajectory.turns)


def reward_of(trajectory: Trajectory, reward: str) -> float:
    """The reward, a field of the score; NaN for an episode that the infrastructure lost or whose
    exact tokens are unknown, which leaves it out of its group's baseline."""
    if trajectory.score is None or trajectory.failure is not None or not exact(trajectory):
        return float("nan")
    return float(getattr(trajectory.score, reward))


def check_turns(trajectory: Trajectory, adapter: str | None) -> None:
    """Raises TraceBenchError unless all turns come from `adapter` and have prompt tokens."""
    for turn in trajectory.turns:
        if turn.adapter != adapter:
            raise TraceBenchError(
                f"{trajectory.task}: expected turns of adapter {adapter!r}, got {turn.adapter!r}"
            )
    if exact(trajectory) and trajectory.turns and not trajectory.turns[0].prompt_ids:
        raise TraceBenchError(f"{trajectory.task}: the first turn has no prompt tokens")


def why_untrained(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a job whose iterations have these `records` took no optimizer step; None if it did."""
    if not records:
        return "its rollouts pay for no iteration"
    if any(record["steps"] for record in records):
        return None
    if all(record["reward"] is None for record in records):
        return "every episode was lost"
    if all(record["constant_share"] == 1.0 for record in records):
        rewards = ", ".join(f"{value:.3g}" for value in _spread(records))
        return f"in every group all rewards were equal (mean reward: {rewards})"
    return "no episode with an advantage has a turn of the agent"


def _spread(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """The lowest and the highest mean reward of the iterations; one number if they are equal."""
    means = [record["reward"] for record in records if record["reward"] is not None]
    return sorted({min(means), max(means)})


def of_rollouts(
    trajectories: Sequence[Trajectory], reward: str, found: Advantages
) -> dict[str, Any]:
    """Mean reward and success, and the shares of groups without a learning signal (`found`)."""
    scores = [t.score for t in trajectories if t.score is not None and t.failure is None]
    return {
        "reward": _mean([float(getattr(s, reward)) for s in scores]),
        "success": _mean([float(s.success) for s in scores]),
        "groups": found.groups,
        "zero_share": found.all_zero / found.groups,
        "one_share": found.all_one / found.groups,
        "constant_share": found.constant / found.groups,
        "failures": found.failed,
        "inexact": sum(not exact(t) for t in trajectories),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
