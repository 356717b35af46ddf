"""What an algorithm is given and gives (sampled tokens, episodes, losses of tokens, advantages),
and the arithmetic that algorithms share, as pure functions on tensors.

Source: DeepSeekMath (Shao et al. 2024, arXiv 2402.03300), section 4.1. Where the papers leave a
choice, the convention is that of verl's `trainer/ppo/core_algos.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SAME = 1e-8  # rewards closer than this are equal
LARGEST = 20.0  # of a difference of log-probabilities, before its exponential (as in verl)
EPS = 1e-6  # added to the standard deviation, as in verl
FULL = 1.0 - 1e-6  # rewards from here on count as 1


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


def standardized(rewards: Tensor) -> Tensor:
    """(reward - mean) / (standard deviation + EPS) of a group's rewards [members]: DeepSeekMath,
    section 4.1.2. The deviation has n - 1 in the denominator, as in verl."""
    return (rewards - rewards.mean()) / (rewards.std() + EPS)


def group_advantages(
    rewards: Tensor, group: Tensor, of_group: Callable[[Tensor], Tensor] = standardized
) -> Advantages:
    """The advantages of each group, by `of_group`. rewards: float [n], NaN for an episode that was
    lost, which is in no baseline and no loss. group: int [n], any labels. Groups in which all
    rewards are equal, or with fewer than two episodes left, have no learning signal and are
    dropped."""
    import torch

    rewards = rewards.double()
    values, trained = torch.zeros_like(rewards), torch.zeros_like(rewards, dtype=torch.bool)
    valid = ~torch.isnan(rewards)
    labels = group.unique().tolist()
    constant = all_zero = all_one = 0
    for label in labels:
        members = (group == label) & valid
        r = rewards[members]
        if len(r) < 2 or float(r.max() - r.min()) <= SAME:
            constant += 1
            all_zero += int(len(r) > 0 and float(r.max()) <= SAME)
            all_one += int(len(r) > 0 and float(r.min()) >= FULL)
            continue
        values[members] = of_group(r)
        trained |= members
    return Advantages(
        values.float(), trained, len(labels), constant, all_zero, all_one, int((~valid).sum())
    )


def token_weights(
    lengths: Tensor, aggregate: str = "trajectory", constant: int | None = None
) -> Tensor:
    """The weight of each token, so that the loss is a plain weighted sum: [n] trajectory lengths ->
    [sum of lengths], adding up to 1 unless a length is `constant`.

    "trajectory": the mean over a trajectory's tokens, then over trajectories (DeepSeekMath,
    equation 3; verl's "seq-mean-token-mean"). "token": the mean over all tokens (DAPO, Yu et al.
    2025, arXiv 2503.14476, section 3.3; verl's "token-mean"). "constant": the sum over a
    trajectory's tokens divided by a constant, then the mean over trajectories (Dr. GRPO; verl's
    "seq-mean-token-sum-norm")."""
    import torch

    lengths = lengths.long()
    total, used = int(lengths.sum()), int((lengths > 0).sum())
    if aggregate == "token":
        return torch.full((total,), 1.0 / max(total, 1), device=lengths.device)
    if aggregate == "constant" and constant is not None:
        return torch.full((total,), 1.0 / (constant * max(used, 1)), device=lengths.device)
    if aggregate != "trajectory":
        raise ValueError(f"aggregate is {aggregate!r}; allowed: trajectory, token, constant")
    share = 1.0 / (lengths.clamp(min=1).float() * max(used, 1))
    return share.repeat_interleave(lengths)


@dataclass(frozen=True)
class Mismatch:
    """The difference between the log-probabilities of sampler and trainer for the same tokens and
    weights: mean and largest absolute value, and an estimate of KL(sampler, trainer), the mean of
    exp(d) - 1 - d with d = trainer - sampler (J. Schulman, "Approximating KL divergence", k3)."""

    mean: float
    max: float
    kl: float


def mismatch(sampler: Tensor, trainer: Tensor) -> Mismatch | None:
    """Both [tokens]; None if there are none."""
    if not sampler.numel():
        return None
    difference = trainer - sampler
    apart, bounded = difference.abs(), difference.clamp(-20.0, 20.0)
    kl = (bounded.expm1() - bounded).mean()
    return Mismatch(float(apart.mean()), float(apart.max()), float(kl))
