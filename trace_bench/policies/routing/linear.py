"""Routes without a choice: one sum of all adapters, for every task, a yardstick for what a choice
brings (`method.route=linear`); and always the same adapter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Router
from trace_bench.core.types import Message, NotNegative, Tool
from trace_bench.policies.routing.merge import Mixture, around
from trace_bench.policies.routing.route import Evidence, Expert, Route


@dataclass(frozen=True)
class Linear(Route):
    """The sum of all adapters, for every task."""

    name: Literal["linear"] = "linear"
    weight: NotNegative = 0.5
    """Of every adapter's update (ours: half of each, without a router, was as good as a router on
    the development split in an early trial)."""

    def fit(self, experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
        parts: list[list[Any]] = [[e.adapter.name, self.weight] for e in experts]
        if evidence.otherwise is not None:
            parts.append([evidence.otherwise, around([self.weight] * len(experts))])
        return {"kind": "sum", "parts": parts}


class FixedRouter(Router):
    """Always chooses the same adapter, or sum of adapters."""

    def __init__(self, adapter: str | Mixture | None) -> None:
        self.adapter = adapter

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        return self.adapter


def sum_of(description: Mapping[str, Any]) -> FixedRouter:
    """The router of "parts". Raises UserError."""
    parts = tuple((str(name), float(w)) for name, w in description["parts"])
    if not parts or not all(math.isfinite(w) for _, w in parts):
        raise UserError(
            f"agent.router is the sum of {list(description['parts'])}; needed: at least one "
            "adapter with a finite weight."
        )
    return FixedRouter(Mixture(parts))
