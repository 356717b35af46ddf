"""RLOO (Ahmadian et al. 2024, arXiv 2402.14740, section 2.2): the baseline of a rollout is the mean
reward of the others of its group. The loss is the clipped ratio, which is the paper's plain policy
gradient in the first step after the rollouts (as in verl)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trace_bench.trainers.algorithms import Algorithm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Rloo(Algorithm):
    """Rewards less the mean of the others of the group, without division by a deviation."""

    name: str = "rloo"

    source: ClassVar[str] = "Ahmadian et al. 2024, arXiv 2402.14740"
    checklists: ClassVar[bool] = False

    def of_group(self, rewards: Tensor) -> Tensor:
        count = len(rewards)
        return (rewards - rewards.mean()) * (count / (count - 1))
