"""Sampling that does not depend on the other episodes in the batch.

Each token uses one number of its episode's own counter-based stream (Philox4x64-10, Salmon et al.
2011), keyed by the episode's seed and the position where the turn starts, and maps it to a token by
the inverse of the cumulative distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

_ALL: Mapping[int, Tensor] = MappingProxyType({})


def uniforms(seed: int, start: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), float32 with 24 random bits, for the tokens of the turn whose
    first sampled token has position `start`."""
    philox = np.random.Philox(key=np.array([seed, start], dtype=np.uint64))
    return ((philox.random_raw(count) >> np.uint64(40)) * np.float32(2.0**-24)).astype(np.float32)


def sample(
    logits: Tensor, temperatures: Tensor, draws: Tensor, allowed: Mapping[int, Tensor] = _ALL
) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability: logits [rows, vocab] (overwritten), temperatures
    and draws [rows] -> ids [rows], natural logs [rows].

    Temperature 0 takes the most likely token and reports its log-probability at temperature 1.
    `allowed`: for the rows that may only take some tokens, which (bool [vocab]). Their
    log-probabilities are still the model's own, among all tokens.
    """
    if not allowed:
        return _sample(logits, temperatures, draws)
    rows = torch.tensor(list(allowed))
    masks = torch.stack(list(allowed.values()))
    whole = logits[rows]
    logits[rows] = whole.masked_fill(~masks, -torch.inf)
    best = logits[rows].argmax(-1)
    ids, logprobs = _sample(logits, temperatures, draws)
    # A draw at the very end of the distribution may be rounded to a token behind it.
    inside = masks.gather(-1, ids[rows, None]).squeeze(-1)
    ids[rows] = torch.where(inside, ids[rows], best)
    heat = temperatures[rows]
    own = (whole / torch.where(heat <= 0, 1.0, heat)[:, None]).log_softmax(-1)
    logprobs[rows] = own.gather(-1, ids[rows, None]).squeeze(-1)
    return ids, logprobs


def _sample(logits: Tensor, temperatures: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    greedy = temperatures <= 0
    some_greedy = bool(greedy.any())
    if some_greedy and bool(greedy.all()):  # as in evaluation: no draw is needed
        ids = logits.argmax(-1)
        return ids, torch.softmax(logits, -1).gather(-1, ids[:, None]).squeeze(-1).log()
    scale = torch.where(greedy, 1.0, temperatures) if some_greedy else temperatures
    if not bool((scale == 1.0).all()):
        logits.div_(scale[:, None])
    probabilities = torch.softmax(logits, -1)
    cumulative = probabilities.cumsum(-1)
    # Scaled by the cumulative sum's own end, so that the draw always falls inside it.
    target = draws[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    ids.clamp_(max=logits.shape[-1] - 1)
    if some_greedy:
        ids = torch.where(greedy, logits.argmax(-1), ids)
    return ids, probabilities.gather(-1, ids[:, None]).squeeze(-1).log()
