"""DAPO (Yu et al. 2025, arXiv 2503.14476): a higher upper clip (section 3.1) and the mean over all
tokens (3.3). Its dynamic sampling (3.2) is the trainer's setting `resample`: `trainer=dapo` sets
both. Its penalty for long answers (3.4) is left out: the limits of an episode end them here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trace_bench.core.types import NotNegative
from trace_bench.trainers.algorithms import Algorithm


@dataclass(frozen=True)
class Dapo(Algorithm):
    """GRPO with a higher upper clip and the mean over all tokens."""

    name: str = "dapo"
    clip_high: NotNegative = 0.28
    """Upper clip of the probability ratio."""

    source: ClassVar[str] = "Yu et al. 2025, arXiv 2503.14476"

    def aggregation(self) -> tuple[str, int | None]:
        return "token", None
