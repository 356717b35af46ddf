"""Dr. GRPO (Liu et al. 2025, arXiv 2503.20783, section 3.2): GRPO without the two divisions that
favour some answers: by the deviation of a group's rewards, and by an answer's own length. The
constant in its place is the longest answer allowed (`generate_max_length` in the authors'
sail-sg/understand-r1-zero, train_zero_math.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trace_bench.core.types import Positive
from trace_bench.trainers.algorithms import Algorithm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DrGrpo(Algorithm):
    """GRPO without division by the deviation or by a trajectory's own length."""

    name: str = "dr_grpo"
    length: Positive = 1024
    """What the sum over a trajectory's tokens is divided by: the most tokens it may have."""

    source: ClassVar[str] = "Liu et al. 2025, arXiv 2503.20783"
    checklists: ClassVar[bool] = False

    def of_group(self, rewards: Tensor) -> Tensor:
        return rewards - rewards.mean()

    def aggregation(self) -> tuple[str, int | None]:
        return "constant", self.length
