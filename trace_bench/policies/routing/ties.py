"""TIES: one update from several (Yadav et al. 2023, arXiv 2306.01708, section 4).

Trim: of each update only the largest values are kept. Elect: each entry's sign is that of the sum
of what is left. Merge: the mean of those values that have this sign.

The paper trims over all layers of an update at once; here each layer is trimmed by itself, so that
only one layer's full matrix is in memory. The result has no low rank. It is written as the closest
matrix whose rank is the sum of the adapters' (Eckart and Young 1936), so that it is an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def ties(updates: Sequence[Tensor], weights: Sequence[float], density: float) -> Tensor:
    """One update [out, in] of several of that shape, each scaled by its weight. `density`: the
    share of each update's values that is kept."""
    import torch

    kept = torch.stack([w * _trimmed(u, density) for u, w in zip(updates, weights, strict=True)])
    agree = (kept.sign() == kept.sum(0).sign()) & (kept != 0)
    return (kept * agree).sum(0) / agree.sum(0).clamp(min=1)


def _trimmed(update: Tensor, density: float) -> Tensor:
    import torch

    count = max(1, round(density * update.numel()))
    largest = update.abs().flatten().topk(count).indices
    out = torch.zeros_like(update).flatten()
    out[largest] = update.flatten()[largest]
    return out.view_as(update)


def factors(update: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(A [rank, in], B [out, rank]) whose product B A is the closest matrix of that rank, or, for a
    smaller matrix, the update itself with zeros added."""
    import torch

    u, s, v = torch.linalg.svd(update.double(), full_matrices=False)
    own = min(rank, len(s))
    a = torch.zeros(rank, update.shape[1])
    b = torch.zeros(update.shape[0], rank)
    root = s[:own].sqrt()
    a[:own] = (root[:, None] * v[:own]).float()
    b[:, :own] = (u[:, :own] * root).float()
    return a, b
