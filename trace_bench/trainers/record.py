"""An iteration's metrics, with the same names for every trainer, and the checks of its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab
from trace_bench.core.types import Trajectory
from trace_bench.trainers.episodes import exact, paid

if TYPE_CHECKING:
    from trace_bench.trainers.grpo import Advantages, Mismatch

FAR_APART, LEAST_APART = 10.0, 0.1
"""Mean differences in log-probability that stop a run: so many times `trainer.mismatch`, and never
less than this."""


def of_rollouts(
    trajectories: Sequence[Trajectory], reward: str, advantages: Advantages
) -> dict[str, Any]:
    """Mean reward and success, and the shares of groups without a learning signal (`found`)."""
    scored = [(t, t.score) for t in trajectories if t.score is not None and t.failure is None]
    return {
        "reward": mean([paid(t, reward) for t, _ in scored]),
        "success": mean([float(score.success) for _, score in scored]),
        "groups": advantages.groups,
        "zero_share": advantages.all_zero / advantages.groups,
        "one_share": advantages.all_one / advantages.groups,
        "constant_share": advantages.constant / advantages.groups,
        "failures": advantages.failed,
        "inexact": sum(not exact(t) for t in trajectories),
    }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def of_sampler(where: str, mismatch: Mismatch | None, limit: float, lab: Lab) -> dict[str, Any]:
    """How far the log-probabilities of sampler and trainer are apart before an iteration's first
    step, as metrics (None: nothing was compared). Above `limit`, the setting `trainer.mismatch`,
    that is an alarm: a line of the log, and in the run's health. Raises UserError far above it:
    rounding differs by less, so the sampler has other weights or an adapter of before."""
    alarm = mismatch is not None and not mismatch.mean <= limit  # NaN is one too
    if mismatch is not None and alarm:
        text = (
            f"{where}: sampler and trainer differ by {mismatch.mean:.3g} in log-probability "
            f"on average (up to {mismatch.max:.3g}), more than trainer.mismatch={limit:g}: the "
            "rollouts are not from the policy that is trained"
        )
        if not mismatch.mean <= (most := max(FAR_APART * limit, LEAST_APART)):
            raise UserError(
                f"{text}, and more than {most:g}, which no rounding explains. Look at the "
                "sampler's weights, adapter and precision, or raise `trainer.mismatch`."
            )
        lab.log(f"warning: {text}")
    return {
        "logprob_difference_mean": mismatch and mismatch.mean,
        "logprob_difference_max": mismatch and mismatch.max,
        "logprob_difference_kl": mismatch and mismatch.kl,
        "logprob_alarm": None if mismatch is None else alarm,
    }


def check_finite(
    where: str,
    norm: float | None,
    largest: tuple[float, str] = (0.0, ""),
    setting: str = "trainer.learning_rate",
) -> None:
    """Raises UserError if the norm of a gradient is known and not finite, or that of the `largest`
    update of a layer is not (`adapters.largest_update`)."""
    update, layer = largest
    if (norm is None or math.isfinite(norm)) and math.isfinite(update):
        return
    said = f"; the largest update is that of {layer}, with a norm of {update:.3g}" if layer else ""
    raise UserError(
        f"{where}: loss or gradient is not finite, training diverged{said}. Lower the setting "
        f"`{setting}`."
    )
