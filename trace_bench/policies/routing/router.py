"""Chooses the adapter for an episode from its first messages; and the route without a choice.

A router's description is plain JSON in the AgentSpec:

    None                                      the only adapter, or the base model
    {"kind": "fixed", "adapter": name|null}   always the same
    {"kind": "zero_shot", "skills": [[name, what it is for], ...], "prompt": 1}
    {"kind": "classifier", "labels": [name|null, ...], "weights": [[number, ...], ...],
     "bias": [number, ...], "others": 0.35, "soft": false}
    {"kind": "sum", "parts": [[name, weight], ...]}                  always this sum

Any but the first two may name the adapter that acts where none is chosen, in place of the base
model: "otherwise": name. All others were trained on from it, so in a sum of them it counts once
(`merge.around`); "parts" has its weight already.

A classifier is one linear layer, which gives each adapter, and the base model, a score: from the
base model's final hidden state at the end of the first prompt. `soft=false` takes the best one
alone, `soft=true` the softmax, rounded to tenths, so that there are few distinct sums. The
adapters' updates are then added with the weights g + others (1 - g): a chosen adapter counts whole,
and the skills of the others are not silenced, so weights need not sum to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trace_bench.core.beginning import renamed
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Router
from trace_bench.core.types import AgentSpec, Message, NotNegative, Tool
from trace_bench.policies.routing import Evidence, Expert, Route
from trace_bench.policies.routing.classifier import ClassifierRouter
from trace_bench.policies.routing.merge import Mixture, around
from trace_bench.policies.routing.zero_shot import ZeroShotRouter


@dataclass(frozen=True)
class Linear(Route):
    """The sum of all adapters, for every task: a yardstick for what a choice brings."""

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


def make_router(agent: AgentSpec, model: object = None) -> Router:
    """Builds the agent's router. `model`: the policy, for routers that ask the base model. Raises
    UserError for a description that does not fit the agent or the policy."""
    names = [a.name for a in agent.adapters]
    description = agent.router
    if description is None:
        if len(names) > 1:
            raise UserError(
                f"agent {agent.version!r} has {len(names)} adapters ({', '.join(names)}) and no "
                "router. Give it a router, or a route for every episode."
            )
        return FixedRouter(names[0] if names else None)
    kind = str(description.get("kind"))
    if kind not in KINDS:
        raise unknown("router", kind, KINDS, "agent.router.kind")
    used: list[str | None] = []
    renamed(description, used.append)
    for name in used:
        if name is not None and name not in names:
            raise unknown("adapter", name, ["null (the base model)", *names], "agent.router")
    return KINDS[kind](description, model)


KINDS: Mapping[str, Callable[[Mapping[str, Any], object], Router]] = {
    "fixed": lambda description, _: FixedRouter(description["adapter"]),
    "zero_shot": ZeroShotRouter,
    "classifier": ClassifierRouter,
    "sum": lambda description, _: sum_of(description),
}
