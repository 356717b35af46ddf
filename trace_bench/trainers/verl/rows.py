"""The rows of a batch: one for each training sequence, so several for an episode whose earlier
turns were rendered anew. What depends on the episode is computed of its sampled tokens one after
the other, and these weigh as if they were in one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Members = Sequence[Sequence[int]]
"""The rows of each episode, in the order of its stretches."""


def members(keys: Sequence[str]) -> Members:
    """The rows by verl's keys, `PROMPT_SESSION_STRETCH`."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row, key in enumerate(keys):
        session, _, stretch = key.rpartition("_")
        found.setdefault(session, []).append((int(stretch), row))
    return [[row for _, row in sorted(rows)] for rows in found.values()]


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
