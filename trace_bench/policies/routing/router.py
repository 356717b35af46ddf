"""Chooses the adapter for an episode from its first messages, or for each turn.

A router's description is plain JSON in the AgentSpec:

    None                                      the only adapter, or the base model
    {"kind": "fixed", "adapter": name|null}   always the same
    {"kind": "zero_shot", "skills": [[name, what it is for], ...], "prompt": 1, "share": 0.0}
    {"kind": "classifier", "labels": [name|null, ...], "weights": [[number, ...], ...],
     "bias": [number, ...], "others": 0.35, "soft": false, "lock": "prefill"}
    {"kind": "turns", "words": [word, ...], "labels": ..., "weights": ..., "bias": ...,
     "others": 0.35}                                              chooses anew at every turn
    {"kind": "sum", "parts": [[name, weight], ...]}                  always this sum

Any but the first two may name the adapter that acts where none is chosen, in place of the base
model: "otherwise": name. All others were trained on from it, so in a sum of them it counts once
(`merge.around`); "parts" has its weight already.

A classifier is one linear layer, which gives each adapter, and the base model, a score: from the
base model's final hidden state at the end of the first prompt ("classifier"), or from the words of
the conversation ("turns"). `soft=false` takes the best one alone, `soft=true` the softmax, rounded
to tenths, so that there are few distinct sums. The adapters' updates are then added with the
weights g + others (1 - g): a chosen adapter counts whole, and the skills of the others are not
silenced, so weights need not sum to one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from trace_bench.core.beginning import renamed
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Prompt, Router, RoutesTurns, ShowsState, State
from trace_bench.core.types import AgentSpec, Message, Tool
from trace_bench.policies.routing.merge import STEPS, Mixture, around, plain
from trace_bench.policies.routing.zero_shot import ZeroShotRouter

AT_SERVERS = "Servers show no hidden states: set `policy` to local, or `method.route` to zero_shot."
"""What to do where a router reads hidden states and the policy shows none."""
LOCK = "prefill"  # a gate's weights are set by the first prompt and kept


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


class FixedRouter(Router):
    """Always chooses the same adapter, or sum of adapters."""

    def __init__(self, adapter: str | Mixture | None) -> None:
        self.adapter = adapter

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        return self.adapter


def _sum(description: Mapping[str, Any], model: object) -> FixedRouter:
    parts = tuple((str(name), float(w)) for name, w in description["parts"])
    if not parts or not all(math.isfinite(w) for _, w in parts):
        raise UserError(
            f"agent.router is the sum of {list(description['parts'])}; needed: at least one "
            "adapter with a finite weight."
        )
    return FixedRouter(Mixture(parts))


class ClassifierRouter(Router):
    """`labels`: an adapter's name or None (the base model) for each row of `weights`
    [labels, hidden size] and `bias` [labels]. Ties go to the earlier label."""

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not isinstance(model, ShowsState):
            raise UserError(
                "this agent's router reads the base model's hidden state, and this policy does not "
                "show it. Play it in this process (`policy` local; serve: without --backend), or "
                "train it with `method.route` zero_shot."
            )
        if (lock := description.get("lock", LOCK)) != LOCK:
            raise unknown("lock", lock, (LOCK,), "agent.router.lock")
        self._model, self.waits = model, model.at_servers
        self.linear = Linear(description)
        self.soft = bool(description.get("soft", False))

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        (choice,) = self.routes([(messages, tools)])
        return choice

    def routes(self, prompts: Sequence[Prompt]) -> list[str | Mixture | None]:
        return [self.choose(state) for state in self._model.prompt_states(prompts)]

    def choose(self, state: State) -> str | Mixture | None:
        """The sum of adapters for the state [hidden size]."""
        return self.linear.choose(np.array(state, dtype=np.float64), self.soft)


class Linear:
    """A linear layer with labels, from JSON: `weights` [labels, features], `bias` [labels]; and how
    its choice is applied: `others`, `otherwise`."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.labels: list[str | None] = list(description["labels"])
        self.weights = weights = np.asarray(description["weights"], dtype=np.float64)
        self.bias = bias = np.asarray(description["bias"], dtype=np.float64)
        count = len(self.labels)
        fits = weights.ndim == 2 and len(weights) == count > 0 and bias.shape == (count,)
        if not fits or not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise UserError(
                f"agent.router has {count} labels, weights of shape {weights.shape} and a bias of "
                f"shape {bias.shape}; needed: finite numbers, (labels, features) and (labels)."
            )
        self.others = share(description, "others")
        self.otherwise: str | None = description.get("otherwise")

    def choose(self, features: np.ndarray, soft: bool = False) -> str | Mixture | None:
        """[features] -> the best adapter, or the sum of all, to which the others are added."""
        scores = self.scores(features)
        gates = rounded(softmax(scores)) if soft else np.eye(len(scores))[scores.argmax()]
        return blend(self.labels, gates, self.others, self.otherwise)

    def scores(self, features: np.ndarray) -> np.ndarray:
        """[features] -> [labels]. Raises UserError for another shape."""
        width = self.weights.shape[1]
        if features.shape != (width,):
            raise UserError(
                f"agent.router was made for {width} features, and this model gives "
                f"{' x '.join(map(str, features.shape))}. Change `model` to the one that the agent "
                "was trained with."
            )
        return self.weights @ features + self.bias


def softmax(scores: np.ndarray) -> np.ndarray:
    """[n] -> [n], positive, adding up to 1."""
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def rounded(gates: np.ndarray) -> np.ndarray:
    """Gates in tenths."""
    return np.round(gates * STEPS) / STEPS


def blend(
    labels: Sequence[str | None], gates: np.ndarray, others: float, otherwise: str | None = None
) -> str | Mixture | None:
    """The adapters with the weights g + others (1 - g), of gates [labels], as `plain`. `otherwise`:
    the adapter that they were trained on from."""
    weights = (gates + others * (1.0 - gates)).round(6).tolist()
    there = [(n, w) for n, w in zip(labels, weights, strict=True) if n is not None]
    if otherwise is not None:
        there.append((otherwise, around(w for _, w in there)))
    return plain(there)


def share(description: Mapping[str, Any], key: str) -> float:
    """A number of the description in [0, 1]; 0 if it is not there. Raises UserError."""
    value = description.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"agent.router.{key} is {value!r}; allowed: a number from 0 to 1.")
    return float(value)


def words(text: str) -> list[str]:
    """Lowercase words and adjacent pairs; every number counts as the same word."""
    single = ["0" if w.isdigit() else w for w in re.findall(r"[a-z]+|\d+", text.lower())]
    return single + [f"{a} {b}" for a, b in pairwise(single)]


class TurnRouter(RoutesTurns):
    """Chooses at every turn by what the conversation shows so far: a linear classifier on words,
    each marked with where it stands: in what the user said, in a tool's result, among the tools at
    hand, or as a tool that the agent called; words of the newest messages are marked once more. It
    needs no model, so any policy can be routed by it. `words` are the features of `weights`
    [labels, words]; `labels`, `others` and `otherwise` are as for `ClassifierRouter`."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.linear = Linear(description)
        self.place = {word: i for i, word in enumerate(description["words"])}

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        """The choice for the first turn."""
        return self.next(messages, tools)

    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        features = np.zeros(len(self.place))
        features[[self.place[w] for w in shown(messages, tools) if w in self.place]] = 1.0
        return self.linear.choose(features)


def shown(messages: Sequence[Message], tools: Sequence[Tool]) -> set[str]:
    """What a conversation shows the agent before its next turn."""
    out = {f"at hand: {tool['function']['name']}" for tool in tools}
    spoken = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    newest = spoken[-1] + 1 if spoken else 0
    for n, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            out.add(f"called: {call['function']['name']}")
        if message["role"] in ("user", "tool"):
            found = {f"{message['role']}: {word}" for word in words(str(message["content"]))}
            out |= found
            if n >= newest and spoken:
                out |= {f"new {word}" for word in found}
    return out


KINDS: Mapping[str, Callable[[Mapping[str, Any], object], Router]] = {
    "fixed": lambda description, _: FixedRouter(description["adapter"]),
    "zero_shot": ZeroShotRouter,
    "classifier": ClassifierRouter,
    "turns": lambda description, _: TurnRouter(description),
    "sum": _sum,
}
