"""CISPO (MiniMax 2025, arXiv 2506.13585, equations 4 and 5): policy gradient in which the ratio is
a weight without a gradient, so that no token is dropped; advantages as GRPO's, no divergence, the
mean over all tokens. It is bounded from above alone, as the paper's experiments are; the bound,
which the paper does not give, is that of ScaleRL (arXiv 2510.13786: 4 to 8 make little
difference)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trace_bench.core.types import NotNegative, Share
from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import Batch, Each


@dataclass(frozen=True)
class Cispo(Algorithm):
    """Policy gradient with the probability ratio as a bounded weight: no token is dropped."""

    name: str = "cispo"
    clip_low: Share = 1.0
    """A ratio weighs at least 1 less this."""
    clip_high: NotNegative = 4.0
    """A ratio weighs at most 1 and this."""

    source: ClassVar[str] = "MiniMax 2025, arXiv 2506.13585"

    def loss(self, batch: Batch) -> Each:
        ratio = batch.ratio.detach()
        weight = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return Each(-weight * batch.advantages * batch.new, ratio != weight)

    def aggregation(self) -> tuple[str, int | None]:
        return "token", None
