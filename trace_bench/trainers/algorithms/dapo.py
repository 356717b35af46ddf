"""DAPO (Yu et al. 2025, arXiv 2503.14476): a higher upper clip (section 3.1), the mean over all
tokens (3.3), and a penalty for long answers (3.4). Its dynamic sampling (3.2) is the trainer's
setting `resample`: `trainer=dapo` sets both. The authors' recipe in verl
(run_dapo_qwen2.5_32b.sh) has the penalty over the last 4096 of 20480 tokens and no divergence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import (
    SETTING,
    Algorithm,
    Batch,
    Each,
    Episodes,
    Recipe,
    clipped,
)

if TYPE_CHECKING:
    from trace_bench.trainers.grpo import Advantages


@dataclass(frozen=True)
class Dapo(Algorithm):
    """GRPO with a higher upper clip, the mean over all tokens, and a penalty for long answers."""

    name: str = "dapo"
    clip_low: float = field(default=0.2, metadata=number(0, 1))
    """Lower clip of the probability ratio."""
    clip_high: float = field(default=0.28, metadata=number(0))
    """Upper clip of the probability ratio."""
    longest: int = field(default=0, metadata=number(0))
    """Sampled tokens of an episode from which on its reward is 1 less; 0: no penalty."""
    margin: int = field(default=1, metadata=number(1))
    """Tokens before `longest` over which the penalty grows from 0."""

    source: ClassVar[str] = "Yu et al. 2025, arXiv 2503.14476"
    heeds: ClassVar[frozenset[str]] = frozenset({"normalize_std"})

    def check_checklists(self) -> None:
        """Their advantages follow from no reward that a penalty could lower."""
        if self.longest:
            raise UserError(
                f"{SETTING}.longest={self.longest} lowers rewards, and the method takes advantages "
                f"from checklists; allowed with it: 0. Set `{SETTING}.longest` to 0, or change "
                "`method`."
            )

    def advantages(self, episodes: Episodes, recipe: Recipe) -> Advantages:
        """Of the rewards with the penalty (equation 13)."""
        if not self.longest:
            return super().advantages(episodes, recipe)
        lengths = episodes.rewards.new_tensor([sum(turns) for turns in episodes.turns])
        over = (lengths - (self.longest - self.margin)) / self.margin
        rewards = episodes.rewards - over.clamp(0.0, 1.0)
        return super().advantages(replace(episodes, rewards=rewards), recipe)

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        return clipped(batch.ratio, batch.advantages, self.clip_low, self.clip_high)

    def aggregation(self, recipe: Recipe) -> tuple[str, int | None]:
        return "token", None
