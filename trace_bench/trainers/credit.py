"""The advantages of an iteration's episodes: the algorithm's (`trace_bench.trainers.algorithms`),
or one for each token from the checklists of their scores (`trace_bench.checklists.rewards`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trace_bench.checklists.rewards import Assignment, Rollout, advantages, reward
from trace_bench.core.checked import build
from trace_bench.core.store import canonical
from trace_bench.core.types import Trajectory
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.episodes import Rewarded, differ, in_groups, usable_rollout
from trace_bench.trainers.grpo import FULL
from trace_bench.trainers.values import SAME, Advantages, Episodes


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
