"""REINFORCE++ (Hu et al. 2025, arXiv 2501.03262, section 3): rewards are normalized over the whole
batch, not within a group; each rollout counts by its sampled tokens (as in verl)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import SAME, Advantages, Episodes

_EPS = 1e-8  # added to the variance


@dataclass(frozen=True)
class ReinforcePlusPlus(Algorithm):
    """Rewards less the mean of the whole batch, by its deviation."""

    name: str = "reinforce_pp"

    source: ClassVar[str] = "Hu et al. 2025, arXiv 2501.03262"
    checklists: ClassVar[bool] = False

    def advantages(self, episodes: Episodes) -> Advantages:
        """A batch in which all rewards are equal has no learning signal."""
        advantages, rewards = super().advantages(episodes), episodes.rewards.double()
        lengths = rewards.new_tensor([sum(turns) for turns in episodes.turns])
        valid = ~rewards.isnan() & (lengths > 0)
        r, n = rewards[valid], lengths[valid]
        if len(r) < 2 or float(r.max() - r.min()) <= SAME:
            return replace(advantages, values=advantages.values * 0.0, trained=valid & False)
        centred = r - (n * r).sum() / n.sum()
        variance = (n * centred**2).sum() / (n.sum() - 1.0)
        values = rewards.new_zeros(len(rewards))
        values[valid] = centred / (variance + _EPS).sqrt()
        return replace(advantages, values=values.float(), trained=valid)
