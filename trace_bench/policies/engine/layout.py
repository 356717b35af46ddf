"""The engine's interface to a model, one forward call over rows of unequal length, and the
positions of all new tokens of a call, computed once for all layers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trace_bench.policies.engine.lora import Adapter

BLOCK = 64  # cache lengths are multiples of this
BLOCK_SLOTS = 16  # slots that attend together while decoding, padded to the longest
_ALIKE = 16  # blocks whose lengths differ by at most this are merged


@dataclass(frozen=True)
class Rows:
    """New tokens of several sequences, without padding.

    ids: int64 [tokens], the rows' new tokens one after the other
    slots, starts, counts: int64 [rows], the slot of each row's cache, its number of cached tokens,
    and its number of new tokens (at least 1)
    adapters: [rows] names, None for the base model; rows with equal names are adjacent"""

    ids: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    adapters: Sequence[str | None]

    @functools.cached_property
    def first(self) -> np.ndarray:
        """[rows]: the place in `ids` of each row's first token."""
        return np.cumsum(self.counts) - self.counts

    @functools.cached_property
    def positions(self) -> np.ndarray:
        """[tokens]: of each token in its own sequence."""
        return np.arange(len(self.ids)) + np.repeat(self.starts - self.first, self.counts)


def groups(adapters: Sequence[str | None]) -> list[tuple[str | None, int, int]]:
    """The runs of rows with the same adapter: (name, first row, end row)."""
    starts = [i for i, name in enumerate(adapters) if i == 0 or name != adapters[i - 1]]
    return [(adapters[a], a, b) for a, b in pairwise([*starts, len(adapters)])]


def grown(have: int, length: int, context: int) -> int:
    """A cache's new length, to hold `length` tokens: doubled, in blocks, up to the context."""
    blocks = -(-max(length, 2 * have) // BLOCK) * BLOCK
    return max(length, min(blocks, context))


class Backend(Protocol):
    """A causal language model with a cache in slots."""

    vocab: int
    block: int  # slots that attend together; each costs as much as the longest
    shapes: Mapping[str, tuple[int, int]]  # linear modules that an adapter may change: (out, in)

    def forward(self, rows: Rows) -> Tensor:
        """Adds the new tokens to the cache; returns logits [rows, vocab] of each row's last one."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` cached tokens of a slot to another."""

    def add(self, adapter: Adapter) -> None: ...
    def remove(self, name: str) -> None: ...


@dataclass(frozen=True)
class Decode:
    """The rows with one new token: their flat tokens and slots, and the span of slots they use,
    in blocks (first slot, end slot, keys) with one masking bias."""

    tokens: Tensor
    slots: Tensor
    span: int
    blocks: tuple[tuple[int, int, int], ...]
    bias: Tensor  # [span, 1, keys of the longest]
    whole: bool  # the flat tokens are the slots 0 .. span - 1 in order


@dataclass(frozen=True)
class Extend:
    """Rows with more than one new token, padded to `width`."""

    tokens: Tensor  # flat tokens
    places: Tensor  # the same tokens in [rows * width]
    slots: Tensor
    width: int
    keys: int
    bias: Tensor  # [rows, 1, 1, width, keys]


@dataclass(frozen=True)
class Layout:
    """All indices of one forward call, computed once for all layers."""

    rotation: Tensor  # complex [tokens, 1, D / 2]
    lines: Tensor  # cache lines of the new keys, then values: [2 * tokens * Hkv]
    decode: Decode | None
    extends: tuple[Extend, ...]


def make_layout(rows: Rows, rotation: Tensor, cache: tuple[int, int, int]) -> Layout:
    """`rotation`: complex [context, 1, D / 2]; `cache`: its slots, key-value heads and length."""
    capacity, heads, length = cache
    slots, starts, counts, first = rows.slots, rows.starts, rows.counts, rows.first
    positions, owner = rows.positions, np.repeat(slots, counts)
    lines = (owner[:, None] * heads + np.arange(heads)) * length + positions[:, None]
    both = np.concatenate([lines, lines + capacity * heads * length], axis=1)
    single = counts == 1
    decode = _decode(first[single], slots[single], starts[single]) if single.any() else None
    extends = tuple(_extend(first[b], slots[b], starts[b], counts[b]) for b in _buckets(counts))
    angles = rotation.index_select(0, torch.from_numpy(positions))
    return Layout(angles, torch.from_numpy(both.reshape(-1)), decode, extends)


def _bias(allowed: np.ndarray) -> Tensor:
    return torch.from_numpy(np.where(allowed, np.float32(0), np.float32(-1e30)))


def _decode(tokens: np.ndarray, slots: np.ndarray, starts: np.ndarray) -> Decode:
    span = int(slots.max()) + 1
    last = np.zeros(span, dtype=np.int64)  # slots without a row see one stale key and are ignored
    last[slots] = starts
    order = np.arange(span)
    return Decode(
        torch.from_numpy(tokens),
        torch.from_numpy(slots),
        span,
        _blocks(last + 1),
        _bias(np.arange(int(last.max()) + 1) <= last[:, None])[:, None],
        len(slots) == span and bool((slots == order).all()) and bool((tokens == order).all()),
    )


def _blocks(lengths: np.ndarray) -> tuple[tuple[int, int, int], ...]:
    """Blocks of slots (first, end, longest); neighbours of about the same length are merged."""
    out: list[tuple[int, int, int]] = []
    for first in range(0, len(lengths), BLOCK_SLOTS):
        end = min(first + BLOCK_SLOTS, len(lengths))
        longest = int(lengths[first:end].max())
        if out and abs(longest - out[-1][2]) <= _ALIKE:
            out[-1] = (out[-1][0], end, max(longest, out[-1][2]))
        else:
            out.append((first, end, longest))
    return tuple(out)


def _extend(first: np.ndarray, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> Extend:
    width, keys = int(counts.max()), int((starts + counts).max())
    inside = np.arange(width) < counts[:, None]
    flat = first[:, None] + np.arange(width)
    last = starts[:, None] + np.arange(width)
    return Extend(
        torch.from_numpy(flat[inside]),
        torch.from_numpy(np.flatnonzero(inside)),
        torch.from_numpy(slots),
        width,
        keys,
        _bias(np.arange(keys) <= last[:, :, None])[:, None, None],
    )


def _buckets(counts: np.ndarray) -> list[np.ndarray]:
    """Groups rows with several tokens such that padding at most about doubles a group's work."""
    rows = np.flatnonzero(counts > 1)
    out: list[list[int]] = []
    for row in rows[np.argsort(counts[rows], kind="stable")].tolist():
        if out and counts[row] <= 2 * counts[out[-1][0]] + 16:
            out[-1].append(row)
        else:
            out.append([row])
    return [np.array(b) for b in out]
