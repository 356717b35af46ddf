"""The arithmetic that algorithms share, as pure functions on tensors; and the advantages of an
iteration's episodes: the algorithm's (`trace_bench.trainers.algorithms`), or one for each token
from the checklists of their scores (`trace_bench.checklists.rewards`).

Source: DeepSeekMath (Shao et al. 2024, arXiv 2402.03300), section 4.1. Where the papers leave a
choice, the convention is that of verl's `trainer/ppo/core_algos.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trace_bench.checklists.rewards import Assignment, Rollout, advantages, reward
from trace_bench.core.checked import build
from trace_bench.core.store import canonical
from trace_bench.core.types import Trajectory
from trace_bench.trainers.algorithms import SAME, Advantages, Episodes, Recipe
from trace_bench.trainers.job import Rewarded, differ, in_groups, usable_rollout

EPS = 1e-6  # added to the standard deviation, as in verl
FULL = 1.0 - 1e-6  # rewards from here on count as 1


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


def credit(
    trajectories: Sequence[Trajectory], rewards: Sequence[float], job: Rewarded, recipe: Recipe
) -> Advantages:
    """The advantages of episodes with these rewards (`earned`), the members of a group adjacent.
    With `resample` a group of equal rewards is not trained on, whatever else its members differ in:
    others are played in its place."""
    advantages = _advantages(trajectories, rewards, job, recipe)
    if not recipe.resample:
        return advantages
    groups = in_groups(rewards, recipe.group_size)
    trained = advantages.trained & torch.tensor([differ(g) for g in groups for _ in g])
    learned = sum(any(members) for members in in_groups(trained.tolist(), recipe.group_size))
    return replace(
        advantages,
        values=advantages.values * trained,
        trained=trained,
        constant=advantages.groups - learned,
    )


def _advantages(
    trajectories: Sequence[Trajectory], rewards: Sequence[float], job: Rewarded, recipe: Recipe
) -> Advantages:
    lengths = [[len(turn.token_ids) for turn in t.turns] for t in trajectories]
    if job.assignment is None:
        values = torch.tensor(rewards, dtype=torch.float64)
        group = torch.arange(len(trajectories)) // recipe.group_size
        observed = [seen(t) for t in trajectories] if recipe.algorithm.observations else []
        return recipe.algorithm.advantages(Episodes(values, group, lengths, observed))
    how = build(Assignment, job.assignment, "method")
    rollouts = [usable_rollout(t) for t in trajectories]
    return by_checklist(rollouts, lengths, in_groups(range(len(rollouts)), recipe.group_size), how)


def seen(trajectory: Trajectory) -> list[str]:
    """What each turn was an answer to, as a text that is equal for equal observations: the messages
    since the turn before, without the ids of calls."""
    return [
        canonical([{k: v for k, v in m.items() if k != "tool_call_id"} for m in turn.messages])
        for turn in trajectory.turns
    ]


def by_checklist(
    rollouts: Sequence[Rollout | None],
    lengths: Sequence[Sequence[int]],
    groups: Sequence[Sequence[int]],
    how: Assignment,
) -> Advantages:
    """`lengths`: the tokens of each step of each rollout; `groups`: the members of each group."""
    tokens = [torch.zeros(sum(each), dtype=torch.float32) for each in lengths]
    trained = torch.zeros(len(rollouts), dtype=torch.bool)
    constant = all_zero = all_one = 0
    for members in groups:
        group = [rollouts[n] for n in members]
        for n, values in zip(members, advantages(group, how), strict=True):
            if values:
                each = torch.tensor(values, dtype=torch.float64)
                tokens[n] = each.repeat_interleave(torch.tensor(lengths[n])).float()
                trained[n] = bool((tokens[n].abs() > SAME).any())
        learned = any(bool(trained[n]) for n in members)
        if learned:  # a member without an advantage of its own still counts in the mean
            for n in members:
                trained[n] = rollouts[n] is not None
            continue
        rewards = [reward(rollout, how) for rollout in group if rollout is not None]
        constant += 1
        all_zero += int(bool(rewards) and max(rewards) <= SAME)
        all_one += int(bool(rewards) and min(rewards) >= FULL)
    means = torch.stack([t.mean() if len(t) else torch.zeros(()) for t in tokens])
    failed = sum(rollout is None for rollout in rollouts)
    return Advantages(
        means, trained, len(groups), constant, all_zero, all_one, failed, tuple(tokens)
    )
