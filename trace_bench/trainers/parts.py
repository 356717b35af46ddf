"""A batch in parts, so that the memory of a forward and backward pass is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trace_bench.trainers.tree import Tokens


@dataclass(frozen=True)
class MemoryBudget:
    """The memory for what a forward pass keeps for the backward pass, in bytes: `total` of it,
    `node` for each distinct token, `sampled` for each sampled token (its logits)."""

    total: float
    node: float
    sampled: float

    def holds(self, nodes: int, sampled: int) -> bool:
        """Whether a pass over so many distinct and sampled tokens fits."""
        return nodes * self.node + sampled * self.sampled <= self.total


def parts(batch: Sequence[Tokens], tokens: int, memory: MemoryBudget) -> Iterator[list[Tokens]]:
    """Consecutive parts of a batch, each of at least one sequence, at most `tokens` tokens, and
    such that it fits the memory budget. A sequence that does not fit alone is a part of its own."""
    part: list[Tokens] = []
    size = nodes = sampled = 0
    for found in batch:
        new = len(found.ids) - _shared(found.ids, part)
        full = size + len(found.ids) > tokens
        if part and (full or not memory.holds(nodes + new, sampled + len(found.sampled))):
            yield part
            part, size, nodes, sampled = [], 0, 0, 0
            new = len(found.ids)
        part.append(found)
        size += len(found.ids)
        nodes += new
        sampled += len(found.sampled)
    yield part


def _shared(ids: np.ndarray, earlier: Sequence[Tokens]) -> int:
    """The longest beginning that `ids` shares with an earlier sequence."""
    longest = 0
    for other in earlier:
        width = min(len(ids), len(other.ids))
        differs = ids[:width] != other.ids[:width]
        longest = max(longest, int(differs.argmax()) if differs.any() else width)
    return longest
