"""What an algorithm is given and gives: sampled tokens, episodes, losses of tokens, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SAME = 1e-8  # rewards closer than this are equal
LARGEST = 20.0  # of a difference of log-probabilities, before its exponential (as in verl)


@dataclass(frozen=True)
class Batch:
    """The sampled tokens of whole sequences, one after the other, all [tokens] but `lengths`
    [sequences]: of trajectories, or of the stretches of those that were rendered anew. `new`:
    log-probabilities with the gradient; `old`: before the iteration's first step; `base`: without
    an adapter."""

    new: Tensor
    old: Tensor
    advantages: Tensor
    lengths: Tensor
    base: Tensor | None = None

    @property
    def ratio(self) -> Tensor:
        """new / old probability of each token."""
        return (self.new - self.old).clamp(-LARGEST, LARGEST).exp()


@dataclass(frozen=True)
class Each:
    """The loss of each token, before it is weighted, and whether it is clipped."""

    values: Tensor
    clipped: Tensor


@dataclass(frozen=True)
class Episodes:
    """What advantages depend on. rewards: float64 [episodes], NaN for one that was lost; group:
    int [episodes], the label of its task's group; turns: the sampled tokens of each turn of each
    episode; seen: what each turn was an answer to, equal texts for equal observations, if the
    algorithm asks for `observations`."""

    rewards: Tensor
    group: Tensor
    turns: Sequence[Sequence[int]]
    seen: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Advantages:
    """`values` [n] are the advantages (0 where not `trained`); `trained` [n]: whether a trajectory
    enters the loss. `tokens`: the advantages of each trajectory's sampled tokens, if they differ
    within it; `values` are then their means. The counts are of groups, `failed` of trajectories;
    `all_zero`, `all_one`: groups in which all rewards are 0, or all are 1."""

    values: Tensor
    trained: Tensor
    groups: int
    constant: int
    all_zero: int
    all_one: int
    failed: int
    tokens: tuple[Tensor, ...] | None = None

    def spread(self, members: Sequence[int], lengths: Tensor) -> Tensor:
        """The advantage of each sampled token of these trajectories, which have `lengths`."""
        import torch

        if self.tokens is None:
            return self.values[list(members)].repeat_interleave(lengths)
        return torch.cat([self.tokens[n] for n in members])
