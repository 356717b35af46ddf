"""The advantages of an iteration's rollouts, for every trainer: one number for each trajectory, or
one for each token from the checklists of their scores (`trace_bench.checklists.rewards`)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trace_bench.checklists.rewards import (
    Assignment,
    Rollout,
    advantages,
    reward,
    rollout_of,
)
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TrainingJob
from trace_bench.core.types import Check, Trajectory
from trace_bench.trainers.grpo import Advantages, group_advantages
from trace_bench.trainers.record import assignment_of, exact, reward_of
from trace_bench.trainers.settings import Recipe

_FULL = 1.0 - 1e-6  # rewards from here on count as 1
_NONE = 1e-8  # advantages up to here count as 0


def earned(trajectories: Sequence[Trajectory], job: TrainingJob, recipe: Recipe) -> list[float]:
    """The rewards of a job's episodes: a field of the score or, with an assignment, what the
    checklists say. NaN for an episode that is in no baseline. Raises UserError for scores without a
    checklist."""
    if job.assignment is None:
        return [reward_of(t, job.reward) for t in trajectories]
    how = assignment_of(job.assignment, recipe.normalize_std)
    found = [usable_rollout(t) for t in trajectories]
    return [math.nan if rollout is None else reward(rollout, how) for rollout in found]


def credit(
    trajectories: Sequence[Trajectory], rewards: Sequence[float], job: TrainingJob, recipe: Recipe
) -> Advantages:
    """The advantages of episodes with these rewards (`earned`), the members of a group adjacent."""
    size = recipe.group_size
    if job.assignment is None:
        values = torch.tensor(rewards, dtype=torch.float64)
        group = torch.arange(len(trajectories)) // size
        return group_advantages(values, group, normalize_std=recipe.normalize_std)
    how = assignment_of(job.assignment, recipe.normalize_std)
    rollouts = [usable_rollout(t) for t in trajectories]
    lengths = [[len(turn.token_ids) for turn in t.turns] for t in trajectories]
    groups = [list(range(n, n + size)) for n in range(0, len(rollouts), size)]
    return by_checklist(rollouts, lengths, groups, how)


def usable_rollout(trajectory: Trajectory) -> Rollout | None:
    """What an episode's advantages depend on; None for one that was lost or whose exact tokens are
    unknown, which is in no baseline."""
    if trajectory.score is None or trajectory.failure is not None or not exact(trajectory):
        return None
    if (found := rollout_of(trajectory)) is None:
        raise UserError(
            f"{trajectory.task}: its score has no checklist, from which the method takes its "
            "advantages. Set `env` to recorded, or `method` to one without checklists."
        )
    return found


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
                tokens[n] = _spread(values, lengths[n])
                trained[n] = bool((tokens[n].abs() > _NONE).any())
        learned = any(bool(trained[n]) for n in members)
        if learned:  # a member without an advantage of its own still counts in the mean
            for n in members:
                trained[n] = rollouts[n] is not None
            continue
        rewards = [reward(rollout, how) for rollout in group if rollout is not None]
        constant += 1
        all_zero += int(bool(rewards) and max(rewards) <= _NONE)
        all_one += int(bool(rewards) and min(rewards) >= _FULL)
    means = torch.stack([t.mean() if len(t) else torch.zeros(()) for t in tokens])
    failed = sum(rollout is None for rollout in rollouts)
    return Advantages(
        means, trained, len(groups), constant, all_zero, all_one, failed, tuple(tokens)
    )


def _spread(values: Sequence[float], lengths: Sequence[int]) -> Tensor:
    """A step's advantage for each of its tokens."""
    return (
        torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(lengths)).float()
    )


def packed(trajectory: Trajectory) -> str:
    """An episode's part in `by_checklist` as a text, for another process; "" for one that is in no
    baseline."""
    if (found := usable_rollout(trajectory)) is None:
        return ""
    checks = [dataclasses.astuple(check) for check in found.checks]
    lengths = [len(turn.token_ids) for turn in trajectory.turns]
    return json.dumps({"turns": found.turns, "checks": checks, "lengths": lengths})


def unpacked(text: str) -> tuple[Rollout | None, list[int]]:
    """(rollout, lengths) of a packed episode."""
    if not text:
        return None, []
    data = json.loads(text)
    checks = tuple(
        Check(turn, item, weight, tuple(after), step)
        for turn, item, weight, after, step in data["checks"]
    )
    return Rollout(tuple(data["turns"]), checks), data["lengths"]
