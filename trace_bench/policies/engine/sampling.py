"""Sampling that does not depend on the other episodes in the batch.

Each token uses one number of its episode's own counter-based stream (Philox4x64-10, Salmon et al.
2011), keyed by the episode's seed and the position where the turn starts, and maps it to a token by
the inverse of the cumulative distribution.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def uniforms(seed: int, start: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), float32 with 24 random bits, for the tokens of the turn whose
    first sampled token has position `start`."""
    philox = np.random.Philox(key=np.array([seed, start], dtype=np.uint64))
    return ((philox.random_raw(count) >> np.uint64(40)) * np.float32(2.0**-24)).astype(np.float32)


def sample(logits: Tensor, temperatures: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability: logits [rows, vocab] (overwritten), temperatures
    and draws [rows] -> ids [rows], natural logs [rows].

    Temperature 0 takes the most likely token and reports its log-probability at temperature 1.
    """
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
