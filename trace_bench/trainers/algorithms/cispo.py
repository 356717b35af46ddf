"""CISPO (MiniMax 2025, arXiv 2506.13585, equations 4 and 5): policy gradient in which the ratio is
a weight without a gradient, so that no token is dropped; advantages as GRPO's, no divergence, the
mean over all tokens. It is bounded from above alone, as the paper's experiments are; the bound,
which the paper does not give, is that of ScaleRL (arXiv 2510.13786: 4 to 8 make little
difference)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from trace_bench.core.types import Meta
from trace_bench.trainers.algorithms import Algorithm, Batch, Each, Recipe


@dataclass(frozen=True)
class Cispo(Algorithm):
    """Policy gradient with the probability ratio as a bounded weight: no token is dropped."""

    name: str = "cispo"
    largest: Annotated[float, Meta(ge=1)] = 5.0
    """The most that a ratio weighs."""

    source: ClassVar[str] = "MiniMax 2025, arXiv 2506.13585"
    heeds: ClassVar[frozenset[str]] = frozenset({"normalize_std"})

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        ratio = batch.ratio.detach()
        weight = ratio.clamp(max=self.largest)
        return Each(-weight * batch.advantages * batch.new, ratio > weight)

    def aggregation(self, recipe: Recipe) -> tuple[str, int | None]:
        return "token", None
