"""Routing by the base model's final hidden state at the end of the first prompt. A logistic
regression, learned from openings of the adapters' own tasks, chooses one adapter, to which the
others are added with a share (`method.route=classifier`), or weighs them all (`soft`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Need, Policy, Router, State
from trace_bench.core.types import Message, Share, Tool
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.regression import Layer, fit
from trace_bench.policies.routing.route import AT_SERVERS, Evidence, Expert, Route, check_examples

STATES = Need("policy", Policy.prompt_states, "docs/routing.md", AT_SERVERS)
EXAMPLES = 256  # most openings of an adapter's tasks, and of its contrast cases (ours)


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


def learned(experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
    """Labels, weights and bias: a label is the adapter whose task an opening is of, or the base
    model for a contrast case."""
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
