"""Routing by linear classifiers, to a sum of all adapters: on the base model's own features, or on
the words of the conversation (`TurnRouter`).

One linear layer gives each adapter, and the base model, a score: from the base model's final hidden
state at the end of the first prompt. `soft=false` takes the best one alone, `soft=true` the
softmax, rounded to tenths, so that there are few distinct sums. The adapters' updates are then
added with the weights g + others (1 - g): a chosen adapter counts whole, and the skills of the
others are not silenced, so weights need not sum to one. Adapters that were trained on from one that
the agent already had hold it, each of them; in their sum it counts once (`around`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Prompt, Router, RoutesTurns, ShowsState, State
from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing.merge import STEPS, Mixture, around
from trace_bench.policies.routing.retrieval import words

LOCK = "prefill"  # a gate's weights are set by the first prompt and kept


class ClassifierRouter(Router):
    """`labels`: an adapter's name or None (the base model) for each row of `weights`
    [labels, hidden size] and `bias` [labels]. Ties go to the earlier label."""

    waits = False

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not isinstance(model, ShowsState):
            raise UserError(
                "this agent's router reads the base model's hidden state, and this policy does not "
                "show it. Play it in this process (`policy` local; serve: without --backend), or "
                "train it with `method.route` retrieval."
            )
        if (lock := description.get("lock", LOCK)) != LOCK:
            raise unknown("lock", lock, (LOCK,), "agent.router.lock")
        self._model = model
        self.linear = Linear(description)
        self.others = share(description, "others")
        self.soft = bool(description.get("soft", False))
        self.otherwise: str | None = description.get("otherwise")

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        (choice,) = self.routes([(messages, tools)])
        return choice

    def routes(self, prompts: Sequence[Prompt]) -> list[str | Mixture | None]:
        return [self.choose(state) for state in self._model.prompt_states(prompts)]

    def choose(self, state: State) -> str | Mixture | None:
        """The sum of adapters for the state [hidden size]."""
        scores = self.linear.scores(np.array(state, dtype=np.float64))
        gates = rounded(softmax(scores)) if self.soft else best(scores)
        return blend(self.linear.labels, gates, self.others, self.otherwise)


class Linear:
    """A linear layer with a label for each of its outputs, from JSON. `weights` [labels, features]
    and `bias` [labels]."""

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

    def scores(self, features: np.ndarray) -> np.ndarray:
        """[features] -> [labels]. Raises UserError for another shape."""
        width = self.weights.shape[1]
        if features.shape != (width,):
            raise UserError(
                f"agent.router was made for {width} features, and this model gives "
                f"{' x '.join(map(str, features.shape))}. Change `model` to the one that the agent "
                "was trained with."
            )
        found: np.ndarray = self.weights @ features + self.bias
        return found


def softmax(scores: np.ndarray) -> np.ndarray:
    """[n] -> [n], positive, adding up to 1."""
    powers = np.exp(scores - scores.max())
    found: np.ndarray = powers / powers.sum()
    return found


def best(scores: np.ndarray) -> np.ndarray:
    """[n] -> [n], 1 at the highest score and 0 elsewhere."""
    found: np.ndarray = np.eye(len(scores))[scores.argmax()]
    return found


def rounded(gates: np.ndarray) -> np.ndarray:
    """Gates in tenths."""
    return np.round(gates * STEPS) / STEPS


def blend(
    labels: Sequence[str | None], gates: np.ndarray, others: float, otherwise: str | None = None
) -> str | Mixture | None:
    """The adapters with the weights g + others (1 - g), of gates [labels]; just a name, or the base
    model, where that is what the sum amounts to. `otherwise`: the adapter that they were trained on
    from."""
    weights = (gates + others * (1.0 - gates)).round(6).tolist()
    there = [(n, w) for n, w in zip(labels, weights, strict=True) if n is not None]
    if otherwise is not None:
        there.append((otherwise, around(w for _, w in there)))
    there = [(n, w) for n, w in there if w]
    if not there:
        return None
    return there[0][0] if len(there) == 1 and there[0][1] == 1.0 else Mixture(tuple(there))


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
        features = np.zeros(len(self.place))
        features[[self.place[w] for w in shown(messages, tools) if w in self.place]] = 1.0
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
