"""Routing by linear classifiers, to a sum of all adapters: on the base model's own features, or on
the words of the conversation (`TurnRouter`).

One linear layer gives each adapter, and the base model, a score: from the base model's final hidden
state at the end of the first prompt, or one layer for each transformer block, from the block's
input, averaged over the prompt. `soft=false` takes the best one alone, `soft=true` the softmax,
rounded to tenths, so that one layer for the model gives few distinct sums. The adapters' updates
are then added with the weights g + others (1 - g): a chosen adapter counts whole, and the skills of
the others are not silenced, so weights need not sum to one. Adapters that were trained on from one
that the agent already had hold it, each of them; in their sum it counts once (`around`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Router, RoutesTurns, ShowsState, State
from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing.merge import STEPS, Mixture, around
from trace_bench.policies.routing.retrieval import words

LOCKS = ("prefill", "turn")


class ClassifierRouter(Router):
    """`labels`: an adapter's name or None (the base model) for each row of `weights`
    [labels, hidden size] and `bias` [labels]; one such layer for each transformer block where they
    have one dimension more, blocks first. Ties go to the earlier label."""

    waits = False

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not isinstance(model, ShowsState):
            raise UserError(
                "this agent's router reads the base model's hidden state, and this policy does not "
                "show it. Play it in this process (`policy` local; serve: without --backend), or "
                "train it with `method.route` retrieval."
            )
        self._model = model
        self.linear = Linear(description)
        self.others = share(description, "others")
        self.soft = bool(description.get("soft", False))
        self.otherwise: str | None = description.get("otherwise")

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        return self.choose(self._model.prompt_states(messages, tools, self.linear.blocks))

    def choose(self, states: Sequence[State]) -> str | Mixture | None:
        """The sum of adapters for the states [1 or blocks, hidden size]."""
        scores = self.linear.scores(np.array(states, dtype=np.float64))
        gates = rounded(softmax(scores)) if self.soft else best(scores)
        return blend(self.linear.labels, gates, self.others, self.otherwise)


class ClassifierAtTurns(ClassifierRouter, RoutesTurns):
    """Chooses anew before each turn, from the conversation so far in place of the first prompt."""

    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        return self.route(messages, tools)


def classifier(description: Mapping[str, Any], model: object) -> ClassifierRouter:
    """The router of a description. Raises UserError for one that does not fit."""
    lock = description.get("lock", LOCKS[0])
    if lock not in LOCKS:
        raise unknown("lock", lock, LOCKS, "agent.router.lock")
    kind = ClassifierRouter if lock == LOCKS[0] else ClassifierAtTurns
    return kind(description, model)


class Linear:
    """One linear layer with a label for each of its outputs, or one for each block, from JSON.
    `weights` [1 or blocks, labels, features] and `bias` [1 or blocks, labels]."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.labels: list[str | None] = list(description["labels"])
        weights = np.asarray(description["weights"], dtype=np.float64)
        bias = np.asarray(description["bias"], dtype=np.float64)
        count = len(self.labels)
        fits = weights.ndim in (2, 3) and weights.shape[-2] == count > 0
        fits = fits and bias.shape == weights.shape[:-1]
        if not fits or not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise UserError(
                f"agent.router has {count} labels, weights of shape {weights.shape} and a bias of "
                f"shape {bias.shape}; needed: finite numbers, (labels, features) and (labels), or "
                "both for each transformer block."
            )
        self.blocks = weights.ndim == 3
        self.weights = weights.reshape(-1, *weights.shape[-2:])
        self.bias = bias.reshape(-1, count)

    def scores(self, features: np.ndarray) -> np.ndarray:
        """[1 or blocks, features] -> [1 or blocks, labels]. Raises UserError for another shape."""
        rows, _, width = self.weights.shape
        if features.shape != (rows, width):
            raise UserError(
                f"agent.router was made for {rows} x {width} features, and this model gives "
                f"{' x '.join(map(str, features.shape))}. Change `model` to the one that the agent "
                "was trained with."
            )
        found: np.ndarray = (self.weights @ features[:, :, None])[:, :, 0] + self.bias
        return found


def softmax(scores: np.ndarray) -> np.ndarray:
    """[..., n] -> [..., n], positive, adding up to 1."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    found: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return found


def best(scores: np.ndarray) -> np.ndarray:
    """[..., n] -> [..., n], 1 at the highest score and 0 elsewhere."""
    found: np.ndarray = np.eye(scores.shape[-1])[scores.argmax(-1)]
    return found


def rounded(gates: np.ndarray) -> np.ndarray:
    """Gates in tenths."""
    return np.round(gates * STEPS) / STEPS


def blend(
    labels: Sequence[str | None], gates: np.ndarray, others: float, otherwise: str | None = None
) -> str | Mixture | None:
    """The adapters with the weights g + others (1 - g), of gates [1 or blocks, labels]; just a
    name, or the base model, where that is what the sum amounts to. `otherwise`: the adapter that
    they were trained on from."""
    columns = (gates + others * (1.0 - gates)).round(6).T.tolist()
    there = [(n, w) for n, w in zip(labels, columns, strict=True) if n is not None]
    if otherwise is not None:
        rows = [[w[n] for _, w in there] for n in range(len(gates))]
        there.append((otherwise, around(rows)))
    there = [(n, w) for n, w in there if any(w)]
    if not there:
        return None
    if len(there) == 1 and set(there[0][1]) == {1.0}:
        return there[0][0]
    return Mixture(tuple((n, w[0] if len(w) == 1 else tuple(w)) for n, w in there))


def share(description: Mapping[str, Any], key: str) -> float:
    """A number of the description in [0, 1]; 0 if it is not there. Raises UserError."""
    value = description.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"agent.router.{key} is {value!r}; allowed: a number from 0 to 1.")
    return float(value)


class TurnRouter(RoutesTurns):
    """Chooses at every turn by what the conversation shows so far: a linear classifier on words,
    each marked with where it stands: in what the user said, in a tool's result, among the tools at
    hand, or as a tool that the agent called; words of the newest messages are marked once more. It
    needs no model, so any policy can be routed by it. `words` are the features of `weights`
    [labels, words]; `labels`, `others` and `otherwise` are as for `ClassifierRouter`."""

    waits = False

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.linear = Linear(description)
        self.others = share(description, "others")
        self.otherwise: str | None = description.get("otherwise")
        self.place = {word: i for i, word in enumerate(description["words"])}

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        """The choice for the first turn."""
        return self.next(messages, tools)

    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        features = np.zeros((1, len(self.place)))
        features[0, [self.place[w] for w in shown(messages, tools) if w in self.place]] = 1.0
        gates = best(self.linear.scores(features))
        return blend(self.linear.labels, gates, self.others, self.otherwise)


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
