"""Routing by the base model's final hidden state at the end of the first prompt. A logistic
regression, learned from openings of the adapters' own tasks, chooses one adapter, to which the
others are added with a share (`method.route=classifier`), or weighs them all (`soft`, `gate`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Need, Policy, Router, State
from trace_bench.core.types import Message, NotNegative, Share, Tool
from trace_bench.policies.routing import AT_SERVERS, Evidence, Expert, Route, check_examples
from trace_bench.policies.routing.merge import Mixture, around, plain

if TYPE_CHECKING:
    from torch import Tensor

STATES = Need("policy", Policy.prompt_states, "docs/routing.md", AT_SERVERS)
EXAMPLES = 256  # most openings of an adapter's tasks, and of its contrast cases (ours)
STEPS = 10  # weights are rounded to tenths, which limits the number of distinct sums
LBFGS = 200  # steps at most; it converges in some 50
L2 = 1e-3  # penalty of the regression (ours)


@dataclass(frozen=True)
class Classifier(Route):
    """A logistic regression on the base model's hidden state, learned from the openings of the
    adapters' own tasks, chooses one adapter, to which the others are added with a share (ours)."""

    soft: ClassVar[bool] = False

    name: Literal["classifier"] = "classifier"
    others: Share = 0.35
    """A weight g becomes g + others (1 - g), so that the other adapters' updates count beside the
    chosen one (ours)."""

    @property
    def needs(self) -> tuple[Need, ...]:
        return (STATES,)

    def fit(self, experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
        layer = learned(experts, evidence)
        return {"kind": "classifier", **layer, "others": self.others, "soft": self.soft}


@dataclass(frozen=True)
class Soft(Classifier):
    """The same classifier, whose probabilities are weights of all adapters (ours)."""

    soft = True
    name: Literal["soft"] = "soft"  # type: ignore[assignment]


@dataclass(frozen=True)
class Gate(Soft):
    """The soft classifier, which is then trained by RL on the target's training tasks (the current
    paper's)."""

    name: Literal["gate"] = "gate"  # type: ignore[assignment]
    share: Share = 0.15
    """Part of the budget for its training; with 0 it stays as it starts (ours)."""
    rate: NotNegative = 1e-3
    """Its learning rate, constant (published)."""


def learned(experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
    """Labels, weights and bias: a label is the adapter of an opening's task, or the base model."""
    labels: list[str | None] = [*(e.adapter.name for e in experts), None]
    by_class: list[Sequence[State]] = []
    contrast: list[State] = []
    for expert in experts:
        by_class.append(evidence.states(expert.side(False)[:EXAMPLES]))
        contrast += evidence.states(expert.side(True)[:EXAMPLES])
    by_class.append(contrast)
    states = [state for of_class in by_class for state in of_class]
    check_examples(states)
    there = [place for place, of_class in enumerate(by_class) if len(of_class)]
    key = tuple(expert.name for expert in experts)
    if key not in evidence.fitted:
        fitted = fit(states, [n for n, place in enumerate(there) for _ in by_class[place]])
        evidence.fitted[key] = fitted.as_json()
        right = f"{fitted.right:.0%} of {len(states)} openings"
        evidence.log(f"router: {right} go where they came from")
    return {"labels": [labels[place] for place in there], **evidence.fitted[key]}


class ClassifierRouter(Router):
    """`labels`: an adapter's name or None (the base model) for each row of `weights`
    [labels, hidden size] and `bias` [labels]. Ties go to the earlier label."""

    def __init__(self, description: Mapping[str, Any], model: object) -> None:
        if not (isinstance(model, Policy) and model.has(Policy.prompt_states)):
            raise UserError(
                "this agent's router reads the base model's hidden state, and this policy does not "
                "show it. Play it in this process (`policy` local; serve: without --backend), or "
                "train it with `method.route` zero_shot."
            )
        self._model, self.waits = model, model.at_servers
        self.layer = Layer(description)
        self.soft = bool(description.get("soft", False))

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str | Mixture | None:
        (state,) = self._model.prompt_states([(messages, tools)])
        return self.choose(state)

    def choose(self, state: State) -> str | Mixture | None:
        """The sum of adapters for the state [hidden size]."""
        return self.layer.choose(np.array(state, dtype=np.float64), self.soft)


# -- a linear layer over adapters ------------------------------------------------------------------


class Layer:
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
        self.others = others_of(description)
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


def others_of(description: Mapping[str, Any]) -> float:
    """A number in [0, 1]; 0 if it is not there. Raises UserError."""
    value = description.get("others", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"agent.router.others is {value!r}; allowed: a number from 0 to 1.")
    return float(value)


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


# -- multinomial logistic regression ----------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """`weights` [classes, features] and `bias` [classes], for features as they are given;
    `right`: the share of the examples whose class has the highest score."""

    weights: Tensor
    bias: Tensor
    right: float

    def as_json(self) -> dict[str, Any]:
        """Exact: a float's text is read back as the same number."""
        return {"weights": self.weights.tolist(), "bias": self.bias.tolist()}


def fit(features: Sequence[Sequence[float]], classes: Sequence[int], l2: float = L2) -> Fitted:
    """Minimizes the mean cross-entropy plus l2/2 times the squared weights, with LBFGS in float64
    from zero, on standardized features (folded back into what is returned). All classes count the
    same, however many examples they have. `classes` are 0, 1, ... without gaps."""
    import torch

    x = torch.from_numpy(np.array(features, dtype=np.float64))
    y = torch.tensor(classes)
    of_class = torch.bincount(y).double()
    each = 1.0 / of_class[y] / len(of_class)
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > 1e-12, scale, torch.ones_like(scale))
    z = (x - mean) / scale
    w = torch.zeros(count := len(of_class), x.shape[1], dtype=torch.float64, requires_grad=True)
    b = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    steps = torch.optim.LBFGS([w, b], max_iter=LBFGS, line_search_fn="strong_wolfe")

    def loss() -> float:
        steps.zero_grad()
        apart = torch.nn.functional.cross_entropy(z @ w.t() + b, y, reduction="none")
        total = (each * apart).sum() + l2 / 2 * w.square().sum()
        torch.autograd.backward(total)
        return float(total.detach())

    steps.step(loss)
    with torch.no_grad():
        right = float(((z @ w.t() + b).argmax(1) == y).double().mean())
        weights = w / scale
        return Fitted(weights.detach(), (b - weights @ mean).detach(), right)
