"""Weighted sums of loaded adapters, without matrices of their own.

sum_i w_i B_i A_i x = B (w * A x), with the A_i of all adapters one below the other, the B_i side by
side, and w_i once for each row of A_i. So rows that use different sums are computed together: a
row brings its weights, of every adapter in every transformer block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trace_bench.policies.engine.lora import Adapter
from trace_bench.policies.engine.matrices import Source, Thin, thin

Weights = Mapping[str, float | Sequence[float]]
"""Of the adapters' updates by name: one for the model, or one for each block."""


class Sums:
    """The loaded adapters, and the sums of them that rows may use. `blocks`: of the model."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._adapters: dict[str, Adapter] = {}
        self._sums: dict[str, Weights] = {}
        self._tables: dict[str, Tensor] = {}  # of the sums: [blocks, adapters]

    @property
    def adapters(self) -> list[Adapter]:
        """In an order that does not depend on when they came, nor does the rounding then."""
        return [self._adapters[name] for name in sorted(self._adapters)]

    def add(self, adapter: Adapter) -> None:
        self._adapters[adapter.name] = adapter
        self._changed()

    def add_sum(self, name: str, weights: Weights) -> None:
        self._sums[name] = weights

    def remove(self, name: str) -> bool:
        """Forgets a sum or an adapter; whether it was a sum."""
        if self._sums.pop(name, None) is not None:
            self._tables.pop(name, None)
            return True
        del self._adapters[name]
        self._changed()
        return False

    def plain(self, names: Sequence[str | None]) -> list[str | None]:
        """The rows' adapters; None for a row that uses a sum, which is added to the base model."""
        return [None if name in self._sums else name for name in names]

    def weights(self, names: Sequence[str | None]) -> Tensor | None:
        """[rows, blocks, adapters], zeros for rows that use no sum; None if none does."""
        if self._sums.keys().isdisjoint(names):
            return None
        none = torch.zeros(self._blocks, len(self._adapters))
        return torch.stack([self._table(n) if n in self._sums else none for n in names])

    def _table(self, name: str | None) -> Tensor:
        assert name is not None
        if name not in self._tables:
            table = torch.zeros(self._blocks, len(self._adapters))
            for place, adapter in enumerate(self.adapters):
                table[:, place] = torch.tensor(self._sums[name].get(adapter.name, 0.0))
            self._tables[name] = table
        return self._tables[name]

    def _changed(self) -> None:
        self._tables = {}


class FusedSums(Sums):
    """For a decoder whose products are fused (`matrices`); thin matrices in `dtype`."""

    def __init__(self, source: Source, dtype: torch.dtype) -> None:
        super().__init__(len(source.layers))
        self._source, self._dtype = source, dtype
        self._thin: dict[tuple[str, int], Thin | None] = {}

    def update(self, name: str, layer: int, x: Tensor, weights: Tensor) -> Tensor | float:
        """What the sums add to a product. x [tokens, in] before the norm, weights [tokens, blocks,
        adapters] -> float32 [tokens, out], or 0 where no adapter changes it."""
        if (name, layer) not in self._thin:
            found = thin(self._source, self.adapters, name, layer, self._dtype)
            self._thin[name, layer] = found
        matrices = self._thin[name, layer]
        if matrices is None:
            return 0.0
        low = functional.linear(
            self._source.normed(name, layer, x).to(self._dtype), matrices.down
        ).mul_(weights[:, layer].index_select(1, matrices.owner))
        return functional.linear(low, matrices.up).float()

    def _changed(self) -> None:
        super()._changed()
        self._thin = {}
