"""Rewards and advantages from checklists, as pure functions on plain numbers.

Source: CM2 (arXiv 2602.12268), section 3. An item's reward event is the step at which it turns from
unsatisfied to satisfied while all items that it depends on were satisfied before that step.

    trajectory  R = 1/L sum over turns and items of weight x event; A = R - mean of the group
    turn        R_t = sum over the turn's items; A_t = R_t - mean of those that reached the turn,
                for every step of that turn
    step        for each eligible item (its dependences are satisfied, itself not yet) the event,
                backfilled to the steps before it, minus the share of the group that satisfies it;
                averaged over the eligible items by weight

L is the number of turns of the reference, so ending early costs. As in Dr. GRPO
(arXiv 2503.20783), the paper divides nothing by a deviation (`deviation`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from trace_bench.core.types import Check, Meta, Trajectory

Level = Literal["trajectory", "turn", "step"]
Key = tuple[int, str]  # an item: turn and id
EPS = 1e-6  # added to a deviation
_SAME = 1e-8  # rewards closer than this are equal


@dataclass(frozen=True)
class Assignment:
    """`method.*` of `method=cm2`: how the reward is assigned."""

    level: Level = "trajectory"
    """To what advantages are assigned: the trajectory, each turn of the user, or each step."""
    weights: bool = True
    """The items' own weights; False: all items of a turn count the same."""
    dependencies: bool = True
    """An item counts only if the items that it depends on were satisfied before it."""
    holders: Annotated[int, Meta(ge=2)] = 5
    """The fewest rollouts for the baseline of a turn or an item; with fewer there is no advantage.
    The paper drops those with four or fewer."""
    deviation: bool = True
    """Divide advantages by their deviation (n - 1), as GRPO does; the paper does not."""


@dataclass(frozen=True)
class Rollout:
    """What an episode's advantages depend on. `turns`: for each of the agent's steps the user's
    turn in which it was made, from 0; `checks`: with steps as indices into `turns`."""

    turns: tuple[int, ...]
    checks: tuple[Check, ...]

    @cached_property
    def satisfied(self) -> Mapping[Key, int | None]:
        """The step that satisfied each item."""
        return {(c.turn, c.item): c.step for c in self.checks}

    def ready(self, check: Check, step: int) -> bool:
        """Whether all items that one depends on were satisfied before the step."""
        moments = [self.satisfied.get((check.turn, name)) for name in check.after]
        return all(moment is not None and moment < step for moment in moments)


def rollout_of(trajectory: Trajectory) -> Rollout | None:
    """An episode's turns and checks; None for one that failed or has no checklist. The agent's
    unreadable calls, which no environment sees, are steps as well."""
    score = trajectory.score
    if score is None or trajectory.failure is not None or not score.checks:
        return None
    turns: list[int] = []
    heard: list[int] = []  # the steps that reached the environment
    turn = -1
    for step, acted in enumerate(trajectory.turns):
        turn += sum(message.get("role") == "user" for message in acted.messages)
        turns.append(max(turn, 0))
        if acted.malformed is None:
            heard.append(step)
    checks = tuple(
        check if check.step is None else replace(check, step=heard[check.step])
        for check in score.checks
    )
    return Rollout(tuple(turns), checks)


def reward(rollout: Rollout, how: Assignment) -> float:
    """The reward of a trajectory, 0 to 1."""
    rewards = turn_rewards(rollout, how).values()
    return math.fsum(rewards) / max(len(rewards), 1)


def turn_rewards(rollout: Rollout, how: Assignment) -> dict[int, float]:
    """The reward of each turn of the reference, 0 to 1."""
    weight = _weights(rollout, how)
    parts: dict[int, list[float]] = {check.turn: [] for check in rollout.checks}
    for key in _events(rollout, how):
        parts[key[0]].append(weight[key])
    return {turn: min(1.0, math.fsum(values)) for turn, values in parts.items()}


def advantages(group: Sequence[Rollout | None], how: Assignment) -> list[list[float]]:
    """The advantage of each step of each rollout in a group of the same task. None is a void
    rollout: it is in no baseline and gets no advantage (an empty list)."""
    there = [rollout for rollout in group if rollout is not None]
    find = {"trajectory": _by_trajectory, "turn": _by_turn, "step": _by_step}[how.level]
    each = iter(find(there, how))
    return [[] if rollout is None else next(each) for rollout in group]


def _by_trajectory(group: Sequence[Rollout], how: Assignment) -> list[list[float]]:
    values = _centred([reward(rollout, how) for rollout in group], how)
    return [[value] * len(r.turns) for value, r in zip(values, group, strict=True)]


def _by_turn(group: Sequence[Rollout], how: Assignment) -> list[list[float]]:
    out = [[0.0] * len(rollout.turns) for rollout in group]
    rewards = [turn_rewards(rollout, how) for rollout in group]
    for turn in sorted({turn for found in rewards for turn in found}):
        holders = [n for n, rollout in enumerate(group) if turn in rollout.turns]
        if len(holders) < how.holders:
            continue
        values = _centred([rewards[n].get(turn, 0.0) for n in holders], how)
        for n, value in zip(holders, values, strict=True):
            for step, at in enumerate(group[n].turns):
                if at == turn:
                    out[n][step] = value
    return out


def _by_step(group: Sequence[Rollout], how: Assignment) -> list[list[float]]:
    events = [frozenset(_events(rollout, how)) for rollout in group]
    baseline: dict[Key, tuple[float, float]] = {}  # (share, scale) of each item
    for key in {key for rollout in group for key in rollout.satisfied}:
        holders = [n for n, rollout in enumerate(group) if key[0] in rollout.turns]
        if len(holders) >= how.holders:
            met = [float(key in events[n]) for n in holders]
            baseline[key] = (math.fsum(met) / len(met), _scale(met, how))
    return [_steps_of(r, found, baseline, how) for r, found in zip(group, events, strict=True)]


def _steps_of(
    rollout: Rollout,
    events: Collection[Key],
    baseline: Mapping[Key, tuple[float, float]],
    how: Assignment,
) -> list[float]:
    """For each step the weighted mean over the items that are eligible at it."""
    weight, out = _weights(rollout, how), []
    for step, turn in enumerate(rollout.turns):
        total, value = [], []
        for check in rollout.checks:
            key = (check.turn, check.item)
            if check.turn != turn or key not in baseline:
                continue
            if check.step is not None and check.step < step:
                continue  # satisfied already
            if how.dependencies and not rollout.ready(check, step):
                continue
            share, scale = baseline[key]
            total.append(weight[key])
            value.append(weight[key] * (float(key in events) - share) / scale)
        out.append(math.fsum(value) / math.fsum(total) if math.fsum(total) > 0 else 0.0)
    return out


def _events(rollout: Rollout, how: Assignment) -> dict[Key, None]:
    """The items that have a reward event, each once, in order."""
    return dict.fromkeys(
        (c.turn, c.item)
        for c in rollout.checks
        if c.step is not None and (not how.dependencies or rollout.ready(c, c.step))
    )


def _weights(rollout: Rollout, how: Assignment) -> dict[Key, float]:
    """The items' weights, normalized in each turn."""
    weights = {(c.turn, c.item): c.weight if how.weights else 1.0 for c in rollout.checks}
    totals: dict[int, float] = {}
    for c in rollout.checks:
        totals[c.turn] = totals.get(c.turn, 0.0) + (c.weight if how.weights else 1.0)
    return {key: weight / (totals[key[0]] or 1.0) for key, weight in weights.items()}


def _centred(rewards: Sequence[float], how: Assignment) -> list[float]:
    """Rewards minus their mean; zeros if they are equal, or too few to be compared."""
    if len(rewards) < 2 or max(rewards) - min(rewards) <= _SAME:
        return [0.0] * len(rewards)
    mean, scale = math.fsum(rewards) / len(rewards), _scale(rewards, how)
    return [(value - mean) / scale for value in rewards]


def _scale(values: Sequence[float], how: Assignment) -> float:
    """What advantages are divided by: 1, or the deviation."""
    if not how.deviation or len(values) < 2:
        return 1.0
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(squares / (len(values) - 1))
    return deviation + EPS if deviation > _SAME else 1.0
