"""Step 6: which adapter acts. Each route is a class with its settings; its `describe` makes the
router as plain JSON, which the policies turn into one (`policies.routing`).

The published router asks the base model for a letter (zero_shot), which the tiny agent cannot
answer: it knows only tool conversations. So the default is the classifier where the policy shows
hidden states, and the published router at servers, which show none. Linear always uses one sum of
all adapters: a yardstick for what a choice brings, as are the oracle, which evaluation runs without
charge, and method=joint.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trace_bench.core.checked import number
from trace_bench.core.protocols import (
    FineTunes,
    HoldsModel,
    Lab,
    MethodPlan,
    Need,
    Phase,
    RanksLabels,
    ShowsState,
)
from trace_bench.core.types import AgentSpec
from trace_bench.methods.looking.analysis import Analysis
from trace_bench.methods.trace.learned import Conversations, Openings
from trace_bench.policies.routing.merge import around
from trace_bench.policies.routing.router import AT_SERVERS, LOCK
from trace_bench.policies.routing.zero_shot import VERSION
from trace_bench.trainers.record import start_of

if TYPE_CHECKING:
    from trace_bench.methods.trace.fit import Trained

LETTERS = Need(
    "policy", RanksLabels, "docs/methods.md", "With method.route=turn no model is asked."
)
STATES = Need(
    "policy",
    ShowsState,
    "docs/routing.md",
    AT_SERVERS,
)
HERE = Need(
    "policy",
    HoldsModel,
    "docs/routing.md",
    "Training the gate makes new sums of adapters with every update, which a model in this process "
    "takes at once. At servers set method.route=zero_shot.",
)
TUNING = Need(
    "trainer",
    FineTunes,
    "docs/routing.md",
    "With method.route.share=0 the gate stays as it starts.",
)


class RouterData:
    """What a router may be made from: the analysis; openings of the adapters' own tasks, and their
    training rollouts. `otherwise`: the base agent's adapter, from which the others were trained on,
    and which acts where none is chosen."""

    def __init__(self, lab: Lab, base: AgentSpec, analysis: Analysis) -> None:
        self.lab, self.base, self.analysis = lab, base, analysis
        self.openings = Openings(lab, base)
        self.conversations = Conversations(lab)

    @property
    def otherwise(self) -> str | None:
        own = start_of(self.base)
        return None if own is None else own.name


@dataclass(frozen=True)
class Route:
    """A way to choose. `asks`: whether every episode first asks the base model; `trained`: part of
    the budget for GRPO of the router."""

    needs: ClassVar[tuple[Need, ...]] = ()
    asks: ClassVar[bool] = False
    trained: ClassVar[float] = 0.0

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        """The router as JSON, without `otherwise`."""
        raise NotImplementedError

    def listening(self, seen: RouterData) -> AbstractContextManager[None]:
        """While the adapters are trained."""
        return nullcontext()

    def planned(self, rollouts: int) -> MethodPlan:
        """With this part of the budget for its own training."""
        return MethodPlan(needs=self.needs, routed=self.asks)

    def router(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        """The router as JSON."""
        instead = {} if seen.otherwise is None else {"otherwise": seen.otherwise}
        return {**self.describe(trained, seen), **instead}


# -- routes that choose one adapter ---------------------------------------------------------------


@dataclass(frozen=True)
class ZeroShot(Route):
    """The base model is asked for the letter of one of the adapters' descriptions, or of "none of
    these" (published)."""

    needs = (LETTERS,)
    asks = True

    name: Literal["zero_shot"] = "zero_shot"
    share: float = field(default=0.0, metadata=number(0, 1))
    """Use the weighted sum of the fewest adapters that have this share of the probability (a
    published variant); 0 uses the likeliest alone (published as final)."""

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        skills = {c.name: c.description for c in seen.analysis.candidates}
        offered = [[t.adapter.name, skills[t.name]] for t in trained]
        more = {"share": self.share} if self.share else {}
        return {"kind": "zero_shot", "skills": offered, "prompt": VERSION, **more}


# -- routes that add adapters up ------------------------------------------------------------------


@dataclass(frozen=True)
class Classifier(Route):
    """A logistic regression on the base model's hidden state, learned from the openings of the
    adapters' own tasks, chooses one adapter, to which the others are added with a share (ours)."""

    needs = (STATES,)
    soft: ClassVar[bool] = False

    name: Literal["classifier"] = "classifier"
    others: float = field(default=0.35, metadata=number(0, 1))
    """A weight g becomes g + others (1 - g), so that the other adapters' updates count beside the
    chosen one (ours)."""

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        chosen = seen.openings.classifier(trained)
        return {"kind": "classifier", **chosen, "others": self.others, "soft": self.soft}


@dataclass(frozen=True)
class Soft(Classifier):
    """The same classifier, whose probabilities are weights of all adapters (ours)."""

    soft = True
    name: Literal["soft"] = "soft"  # type: ignore[assignment]


@dataclass(frozen=True)
class GateRoute(Classifier):
    """A soft classifier that is then trained with GRPO on the target's training tasks (the current
    paper's)."""

    soft = True

    name: Literal["gate"] = "gate"  # type: ignore[assignment]
    share: float = field(default=0.15, metadata=number(0, 1))
    """Part of the budget for GRPO of the gate; with 0 it stays as it starts (ours)."""
    rate: float = field(default=1e-3, metadata=number(0))
    """Learning rate of its GRPO, constant (published)."""
    warm: bool = True
    """Start from the classifier (published: a warm start on prompts and capabilities), or else at
    zero, which weighs all adapters alike (published as the gate's initialization)."""

    @property
    def trained(self) -> float:  # type: ignore[override]
        return self.share

    def planned(self, rollouts: int) -> MethodPlan:
        phase = Phase("training of the gate", rollouts, most=True)
        own = MethodPlan(phases=(phase,), needs=(HERE, TUNING)) if rollouts else MethodPlan()
        return super().planned(rollouts).then(own)

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        chosen = seen.openings.classifier(trained, self.warm)
        return {"kind": "classifier", **chosen, "others": self.others, "soft": True, "lock": LOCK}


@dataclass(frozen=True)
class TurnRoute(Route):
    """A linear classifier on words chooses anew at every turn, by what the conversation shows so
    far, learned from training rollouts (ours)."""

    name: Literal["turn"] = "turn"
    others: float = field(default=0.35, metadata=number(0, 1))
    """As with the classifier."""

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        chosen = seen.conversations.classifier(trained)
        return {"kind": "turns", **chosen, "others": self.others}

    def listening(self, seen: RouterData) -> AbstractContextManager[None]:
        return seen.lab.listening(seen.conversations.hear)


@dataclass(frozen=True)
class LinearRoute(Route):
    """The sum of all adapters, for every task."""

    name: Literal["linear"] = "linear"
    weight: float = field(default=0.5, metadata=number(0))
    """Of every adapter's update (ours: half of each, without a router, was as good as a router on
    the development split in an early trial)."""

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        parts: list[list[Any]] = [[t.adapter.name, self.weight] for t in trained]
        if seen.otherwise is not None:
            parts.append([seen.otherwise, around([self.weight] * len(trained))])
        return {"kind": "sum", "parts": parts}


AnyRoute = Classifier | Soft | TurnRoute | GateRoute | ZeroShot | LinearRoute
