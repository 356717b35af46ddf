"""DAPO (Yu et al. 2025, arXiv 2503.14476): a higher upper clip (section 3.1) and the mean over all
tokens (3.3). Its dynamic sampling (3.2) is the trainer's setting `resample`: `trainer=dapo` sets
both. Its penalty for long answers (3.4) is left out: the limits of an episode end them here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trace_bench.core.types import NotNegative, Share
from trace_bench.trainers.algorithms import Algorithm, Batch, Each, Recipe, clipped


@dataclass(frozen=True)
class Dapo(Algorithm):
    """GRPO with a higher upper clip and the mean over all tokens."""

    name: str = "dapo"
    clip_low: Share = 0.2
    """Lower clip of the probability ratio."""
    clip_high: NotNegative = 0.28
    """Upper clip of the probability ratio."""

    source: ClassVar[str] = "Yu et al. 2025, arXiv 2503.14476"
    heeds: ClassVar[frozenset[str]] = frozenset({"normalize_std"})

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        return clipped(batch.ratio, batch.advantages, self.clip_low, self.clip_high)

    def aggregation(self, recipe: Recipe) -> tuple[str, int | None]:
        return "token", None
