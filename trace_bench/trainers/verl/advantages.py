"""The advantages of verl's rows: of rewards alone, by checklists, or with what observations add.

A batch has a row for each training sequence, so several for an episode whose earlier turns were
rendered anew. What depends on the episode is computed of its sampled tokens one after the other,
and these weigh as if they were in one row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trace_bench.checklists.rewards import Assignment
from trace_bench.trainers import credit
from trace_bench.trainers.algorithms import Advantages, Episodes, Recipe
from trace_bench.trainers.credit import unpacked
from trace_bench.trainers.episodes import assignment_of
from trace_bench.trainers.verl.spec import JobSpec

Members = Sequence[Sequence[int]]  # the rows of each episode, in the order of its stretches


def members(keys: Sequence[str]) -> Members:
    """The rows by verl's keys, `PROMPT_SESSION_STRETCH`."""
    sessions: dict[str, list[tuple[int, int]]] = {}
    for row, key in enumerate(keys):
        session, _, stretch = key.rpartition("_")
        sessions.setdefault(session, []).append((int(stretch), row))
    return [[row for _, row in sorted(rows)] for rows in sessions.values()]


def joined(mask: Tensor, episodes: Members) -> Tensor:
    """A mask [rows, tokens] of sampled tokens -> [episodes, tokens], those of each at the
    beginning."""
    counts = torch.stack([mask[list(rows)].sum() for rows in episodes]).long()
    places = torch.arange(max(int(counts.max()), 1), device=mask.device)
    return (places < counts[:, None]).to(mask.dtype)


def dealt(values: Tensor, mask: Tensor, episodes: Members) -> Tensor:
    """Values [episodes, tokens] of `joined` tokens, at the places [rows, tokens] of the mask."""
    out = torch.zeros(mask.shape, dtype=values.dtype, device=mask.device)
    for each, rows in zip(values, episodes, strict=True):
        done = 0
        for row in rows:
            places = mask[row].bool()
            count = int(places.sum())
            out[row, places] = each[done : done + count]
            done += count
    return out


def weights(mask: Tensor, episodes: Members, aggregate: str, usual: int) -> Tensor:
    """What verl must multiply each token's loss by, [rows, tokens], to weigh it by its episode: a
    row's mean becomes its part of the episode's, and the mean over all rows that over `usual`, as
    many as there are without stretches. `aggregate`: as in `grpo.token_weights`."""
    out = mask.float()
    if aggregate == "token":
        return out
    for rows in episodes if aggregate == "trajectory" else ():
        lengths = mask[list(rows)].sum(-1)
        for row, length in zip(rows, lengths, strict=True):
            out[row] *= length / lengths.sum().clamp(min=1)
    return out * (len(mask) / usual)


def advantages(
    recipe: Recipe, token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, **_: Any
) -> tuple[Tensor, Tensor]:
    """(advantages, returns), both [rows, tokens], of rewards and mask of that shape; `index` [rows]
    is the group of each row. A group of equal rewards, or of one row, has advantages of zero. What
    observations add comes later (`of_episodes`)."""
    turns = [[n] for n in response_mask.sum(-1).long().tolist()]
    rewards, unseen = token_level_rewards.sum(dim=-1), [list[str]()] * len(turns)
    episodes = Episodes(rewards, labels_of(index), turns, unseen)
    spread = in_rows(recipe.algorithm.advantages(episodes, recipe), response_mask)
    return spread, spread


def by_checklist(
    episodes: Sequence[str], response_mask: Tensor, index: np.ndarray, how: Assignment
) -> Tensor:
    """The advantages [rows, tokens] of packed episodes (`credit.packed`), as trainer=local has
    them. `response_mask` [rows, tokens] is 1 at the sampled tokens, `index` [rows] the group."""
    rollouts = [unpacked(text) for text in episodes]
    labels = labels_of(index).numpy()
    groups = [np.flatnonzero(labels == n).tolist() for n in range(int(labels.max()) + 1)]
    by_token = credit.by_checklist(
        [r for r, _ in rollouts], [each for _, each in rollouts], groups, how
    )
    return in_rows(by_token, response_mask)


def labels_of(index: np.ndarray) -> Tensor:
    """The number of each row's group."""
    return torch.from_numpy(np.unique(index.astype(str), return_inverse=True)[1])


def in_rows(advantages: Advantages, response_mask: Tensor) -> Tensor:
    """Advantages of trajectories or tokens, at the tokens' places [rows, tokens]."""
    if advantages.tokens is None:
        return advantages.values.to(response_mask.device)[:, None] * response_mask
    out = torch.zeros_like(response_mask, dtype=torch.float32)
    for row, tokens in enumerate(advantages.tokens):
        places = response_mask[row].bool().nonzero()[:, 0]
        if len(tokens) and len(places):  # not of a row in no baseline, nor of one that pads
            out[row, places] = tokens.float().to(out.device)
    return out


def of_episodes(
    spec: JobSpec, episodes: Sequence[str], rewards: Tensor, mask: Tensor, index: np.ndarray
) -> Tensor:
    """The advantages [episodes, tokens] by what the job asks for. `episodes`: the credit of each
    (`episodes.credit_of`)."""
    recipe = spec.trainer
    if spec.assignment is not None:
        how = assignment_of(spec.assignment, recipe)
        return by_checklist(episodes, mask, index, how)
    if not recipe.algorithm.observations:
        return advantages(recipe, rewards[:, None], mask, index)[0]
    data = [json.loads(text) if text else {"lengths": [], "seen": []} for text in episodes]
    turns, seen = [d["lengths"] for d in data], [d["seen"] for d in data]
    by_turn = recipe.algorithm.advantages(Episodes(rewards, labels_of(index), turns, seen), recipe)
    return in_rows(by_turn, mask)
