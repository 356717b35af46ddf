"""Routing by a linear classifier on the base model's own features, to a sum of all adapters.

The state is the base model's final hidden state at the end of the first prompt. One linear layer
gives each adapter, and the base model, a score. `soft=false` takes the best one alone, `soft=true`
the softmax, rounded to tenths so that the number of distinct sums stays small. The adapters'
updates are then added with the weights g + others (1 - g): a chosen adapter counts whole, and the
skills of the others are not silenced, so weights need not sum to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import ShowsState, State
from trace_bench.core.types import Message, Tool
from trace_bench.policies.routing.merge import STEPS, Mixture


class ClassifierRouter:
    """`labels`: an adapter's name or None (the base model) for each row of `weights`
    [labels, hidden size] and `bias` [labels]. Ties go to the earlier label."""

    waits = False

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not isinstance(model, ShowsState):
            raise UserError(
                "this agent's router reads the base model's hidden state, and this policy does not "
                "show it. Change `policy` to local, or `method.route` to retrieval."
            )
        self._model = model
        self.linear = Linear(description)
        self.others = share(description, "others")
        self.soft = bool(description.get("soft", False))

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        return self.choose(self._model.prompt_state(messages, tools))

    def choose(self, state: State) -> str | Mixture | None:
        """The sum of adapters for a state [hidden size]."""
        scores = self.linear.scores(np.asarray(state, dtype=np.float64))
        gates = rounded(softmax(scores)) if self.soft else np.eye(len(scores))[scores.argmax()]
        return blend(self.linear.labels, gates, self.others)


class Linear:
    """One linear layer with a label for each of its outputs, from JSON."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.labels: list[str | None] = list(description["labels"])
        self.weights = np.asarray(description["weights"], dtype=np.float64)
        self.bias = np.asarray(description["bias"], dtype=np.float64)
        count = len(self.labels)
        fits = self.weights.ndim == 2 and self.weights.shape[0] == count > 0
        fits = fits and self.bias.shape == (count,)
        if not fits or not (np.isfinite(self.weights).all() and np.isfinite(self.bias).all()):
            raise UserError(
                f"agent.router has {count} labels, weights of shape {self.weights.shape} and a "
                f"bias of shape {self.bias.shape}; needed: finite numbers, (labels, features) and "
                "(labels)."
            )

    def scores(self, features: np.ndarray) -> np.ndarray:
        """[features] -> [labels]. Raises UserError for another number of features."""
        if features.shape != self.weights.shape[1:]:
            raise UserError(
                f"agent.router was made for {self.weights.shape[1]} features, and this model gives "
                f"{features.size}. Change `model` to the one that the agent was trained with."
            )
        found: np.ndarray = self.weights @ features + self.bias
        return found


def softmax(scores: np.ndarray) -> np.ndarray:
    """[n] -> [n], positive, adding up to 1."""
    powers = np.exp(scores - scores.max())
    found: np.ndarray = powers / powers.sum()
    return found


def rounded(gates: np.ndarray) -> np.ndarray:
    """Gates in tenths."""
    return np.round(gates * STEPS) / STEPS


def blend(labels: Sequence[str | None], gates: np.ndarray, others: float) -> str | Mixture | None:
    """The adapters with the weights g + others (1 - g); just a name, or the base model, where that
    is what the sum amounts to."""
    weights = [round(float(g + others * (1.0 - g)), 6) for g in gates]
    parts = tuple((n, w) for n, w in zip(labels, weights, strict=True) if n is not None and w)
    if not parts:
        return None
    return parts[0][0] if len(parts) == 1 and parts[0][1] == 1.0 else Mixture(parts)


def share(description: Mapping[str, Any], key: str) -> float:
    """A number of the description in [0, 1]; 0 if it is not there. Raises UserError."""
    value = description.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"agent.router.{key} is {value!r}; allowed: a number from 0 to 1.")
    return float(value)
