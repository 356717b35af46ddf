"""GSPO in its token form (Zheng et al. 2025, arXiv 2507.18071, section 4.3): one ratio for a
trajectory (a stretch, where it was rendered anew), s = exp(mean over its tokens of log r), which is
clipped; with the value of s and the gradient of the token, so that advantages of tokens may differ.
The paper: four minibatches of a batch of rollouts, one pass, no divergence: `trainer=gspo`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trace_bench.core.types import NotNegative, Share
from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import Batch, Each

if TYPE_CHECKING:
    from torch import Tensor


_LARGEST = 10.0  # of the ratio's logarithm, as in verl


@dataclass(frozen=True)
class Gspo(Algorithm):
    """GRPO with one probability ratio for a whole sequence, of which the clips are narrow."""

    name: str = "gspo"
    clip_low: Share = 3e-4
    """Lower clip of the sequence's ratio (section 5.1)."""
    clip_high: NotNegative = 4e-4
    """Upper clip of the sequence's ratio."""

    source: ClassVar[str] = "Zheng et al. 2025, arXiv 2507.18071"

    def loss(self, batch: Batch) -> Each:
        whole = means((batch.new - batch.old).detach(), batch.lengths)
        log_ratio = batch.new - batch.new.detach() + whole
        ratio = log_ratio.clamp(max=_LARGEST).exp()
        return self.clipped(ratio, batch.advantages)


def means(values: Tensor, lengths: Tensor) -> Tensor:
    """For each token the mean of its trajectory's `values` [tokens]."""
    which = lengths.new_tensor(range(len(lengths))).repeat_interleave(lengths)
    sums = values.new_zeros(len(lengths)).index_add(0, which, values)
    return (sums / lengths.clamp(min=1)).index_select(0, which)
