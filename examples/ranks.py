"""An algorithm of your own: GRPO with the ranks of rewards in place of the rewards.

    python -m trace_bench method=grpo trainer.algorithm=ranks:Ranks budget=160

What a rollout earned more than another of its group does not count, only that it did: one rollout
with an unusual reward cannot decide the whole step.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import trace_bench as tb


@dataclass(frozen=True)
class Ranks(tb.Algorithm):
    """GRPO with the ranks of rewards in a group, from -1 to 1, as advantages."""

    name: str = "ranks:Ranks"
    power: float = 1.0
    """Above 1: the best and the worst count for more; trainer.algorithm.power=2."""

    source: ClassVar[str] = "an example"
    checklists: ClassVar[bool] = False

    def of_group(self, rewards: Any) -> Any:
        """`rewards`: a tensor [members], not all equal. Equal rewards have equal ranks."""
        below = (rewards[:, None] > rewards).sum(1)
        above = (rewards[:, None] < rewards).sum(1)
        ranks = (below - above) / (len(rewards) - 1)
        return ranks.sign() * ranks.abs() ** self.power
