"""The engine's interface to a model: one forward call over rows of unequal length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from trace_bench.policies.engine.lora import Adapter


@dataclass(frozen=True)
class Rows:
    """New tokens of several sequences, without padding.

    ids: int64 [tokens], the rows' new tokens one after the other
    slots, starts, counts: int64 [rows], the slot of each row's cache, its number of cached tokens,
    and its number of new tokens (at least 1)
    adapters: [rows] names, None for the base model; rows with equal names are adjacent
    """

    ids: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    adapters: Sequence[str | None]


def groups(adapters: Sequence[str | None]) -> list[tuple[str | None, int, int]]:
    """The runs of rows with the same adapter: (name, first row, end row)."""
    out: list[tuple[str | None, int, int]] = []
    for i, name in enumerate(adapters):
        if out and out[-1][0] == name:
            out[-1] = (name, out[-1][1], i + 1)
        else:
            out.append((name, i, i + 1))
    return out


class Backend(Protocol):
    """A causal language model with a cache in slots."""

    vocab: int
    block: int  # slots that attend together; each costs as much as the longest
    shapes: Mapping[str, tuple[int, int]]  # linear modules that an adapter may change: (out, in)

    def forward(self, rows: Rows) -> Tensor:
        """Adds the new tokens to the cache; returns logits [rows, vocab] of each row's last one."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` cached tokens of a slot to another."""
        ...

    def alone(self) -> AbstractContextManager[object]:
        """A lock: while it is held, the model itself may be called from any thread, without
        adapters."""
        ...

    def add(self, adapter: Adapter) -> None: ...
    def remove(self, name: str) -> None: ...
