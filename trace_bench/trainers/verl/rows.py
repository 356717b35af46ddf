"""The arithmetic of verl's rows. A batch has a row for each training sequence, so several for an
episode whose earlier turns were rendered anew: what an episode's sampled tokens have, one after the
other, is put at their places in its rows, and they weigh as if they were in one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Members = Mapping[str, Sequence[int]]  # the rows of each episode, in the order of its stretches


def members(keys: Sequence[str]) -> Members:
    """The rows by verl's keys, `PROMPT_SESSION_STRETCH`; an episode's name is what comes first."""
    episodes: dict[str, list[tuple[int, int]]] = {}
    for row, key in enumerate(keys):
        episode, _, stretch = key.rpartition("_")
        episodes.setdefault(episode, []).append((int(stretch), row))
    return {name: [row for _, row in sorted(rows)] for name, rows in episodes.items()}


def dealt(values: Mapping[str, Tensor], mask: Tensor, episodes: Members) -> Tensor:
    """Values [sampled tokens] of episodes at the mask's places [rows, tokens], else 0."""
    out = torch.zeros(mask.shape, device=mask.device)
    for name, rows in episodes.items():
        done = 0
        for row in rows if name in values else ():
            places = mask[row].bool()
            count = int(places.sum())
            out[row, places] = values[name][done : done + count].to(out)
            done += count
    return out


def weights(mask: Tensor, episodes: Members, aggregate: str, usual: int) -> Tensor:
    """What verl must multiply each token's loss by, [rows, tokens], to weigh it by its episode: a
    row's mean becomes its part of the episode's, and the mean over all rows that over `usual`, as
    many as there are without stretches. `aggregate`: as in `grpo.token_weights`."""
    out = mask.float()
    if aggregate == "token":
        return out
    for rows in episodes.values() if aggregate == "trajectory" else ():
        lengths = mask[list(rows)].sum(-1)
        for row, length in zip(rows, lengths, strict=True):
            out[row] *= length / lengths.sum().clamp(min=1)
    return out * (len(mask) / usual)
