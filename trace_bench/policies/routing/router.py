"""Chooses the adapter for an episode from its first messages, or for each turn.

A router's description is plain JSON in the AgentSpec:

    None                                      the only adapter, or the base model
    {"kind": "fixed", "adapter": name|null}   always the same
    {"kind": "retrieval", "examples": [[text, name|null, [place in `tools`, ...]], ...],
     "tools": [tool name, ...], "tools_weight": 0.7, "top_k": 5, "threshold": 0.35}
    {"kind": "zero_shot", "skills": [[name, what it is for], ...], "prompt": 1, "share": 0.0}
    {"kind": "both", "retrieval": {...}, "zero_shot": {...}}
    {"kind": "classifier", "labels": [name|null, ...], "weights": [[number, ...], ...],
     "bias": [number, ...], "others": 0.35, "soft": false, "lock": "prefill"}
    {"kind": "turns", "words": [word, ...], "labels": ..., "weights": ..., "bias": ...,
     "others": 0.35}                                              chooses anew at every turn
    {"kind": "sum", "parts": [[name, weight], ...], "density": null|0.2}      always this sum; with
                                                                      a density merged by TIES

A retrieval example may lack its tools; without "tools_weight" only texts are compared. Any but the
first two may name the adapter that acts where none is chosen, in place of the base model:
"otherwise": name. All others were trained on from it, so in a sum of them it counts once
(`merge.around`); "parts" has its weight already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Router
from trace_bench.core.types import AgentSpec, Message, Tool
from trace_bench.policies.routing.classifier import ClassifierRouter, TurnRouter, share
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.retrieval import RetrievalRouter
from trace_bench.policies.routing.zero_shot import BothRouter, ZeroShotRouter


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
    for name in _named(description):
        if name is not None and name not in names:
            raise unknown("adapter", name, ["null (the base model)", *names], "agent.router")
    return KINDS[kind](description, model)


def _named(description: Mapping[str, Any]) -> Iterator[str | None]:
    """Every adapter that a description names."""
    yield from (description.get("adapter"), description.get("otherwise"))
    yield from description.get("labels", ())
    yield from (example[1] for example in description.get("examples", ()))
    yield from (each[0] for key in ("skills", "parts") for each in description.get(key, ()))
    for part in ("retrieval", "zero_shot"):  # of "both"
        if part in description:
            yield from _named(description[part])


class FixedRouter(Router):
    """Always chooses the same adapter, or sum of adapters."""

    waits = False

    def __init__(self, adapter: str | Mixture | None) -> None:
        self.adapter = adapter

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        return self.adapter


def _sum(description: Mapping[str, Any], model: object) -> FixedRouter:
    parts = tuple((str(name), float(w)) for name, w in description["parts"])
    density = None if description.get("density") is None else share(description, "density")
    if not parts or not all(math.isfinite(w) for _, w in parts) or density == 0:
        raise UserError(
            f"agent.router is the sum of {list(description['parts'])} with the density {density}; "
            "needed: at least one adapter with a finite weight, and a density above 0."
        )
    return FixedRouter(Mixture(parts, density))


KINDS: Mapping[str, Callable[[Mapping[str, Any], object], Router]] = {
    "fixed": lambda description, _: FixedRouter(description["adapter"]),
    "retrieval": lambda description, _: RetrievalRouter(description),
    "zero_shot": ZeroShotRouter,
    "both": BothRouter,
    "classifier": ClassifierRouter,
    "turns": lambda description, _: TurnRouter(description),
    "sum": _sum,
}
