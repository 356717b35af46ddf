"""Step 6: which adapter acts. Each route is a class with its settings; its `describe` makes the
router as plain JSON, which the policies turn into one (`policies.routing`).

The published router asks the base model for a letter (zero_shot), which the tiny agent cannot
answer: it knows only tool conversations. The default is the classifier, by the rule of
results/protocol.md. Linear and ties always use one merge of all adapters: yardsticks for what a
choice brings, as are the oracle, which evaluation runs without charge, and method=joint.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
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
from trace_bench.methods.making import read_opening
from trace_bench.methods.trace.learned import Conversations, Openings, first_steps
from trace_bench.policies.routing.merge import around
from trace_bench.policies.routing.retrieval import VERSION
from trace_bench.policies.routing.router import AT_SERVERS, LOCK
from trace_bench.trainers.record import start_of

if TYPE_CHECKING:
    from trace_bench.methods.trace.fit import Trained

Example = tuple[str, str | None, tuple[str, ...]]  # text, adapter (None: base model), tools

LETTERS = Need(
    "policy", RanksLabels, "docs/methods.md", "With method.route=retrieval no model is asked."
)
STATES = Need(
    "policy",
    ShowsState,
    "docs/routing.md",
    f"With method.route=retrieval no hidden state is read. {AT_SERVERS}",
)
HERE = Need(
    "policy",
    HoldsModel,
    "docs/routing.md",
    "Training the gate makes new sums of adapters with every update, which a model in this process "
    "takes at once; at servers set method.route=soft, which is the gate before its training.",
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

    def check_base(self, base: AgentSpec) -> None:
        """Raises UserError for a base agent that it cannot begin with."""

    def planned(self, rollouts: int) -> MethodPlan:
        """With this part of the budget for its own training."""
        return MethodPlan(needs=self.needs, routed=self.asks)

    def router(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        """The router as JSON."""
        instead = {} if seen.otherwise is None else {"otherwise": seen.otherwise}
        return {**self.describe(trained, seen), **instead}


# -- routes that choose one adapter ---------------------------------------------------------------


@dataclass(frozen=True)
class Retrieval(Route):
    """One adapter or the base model, by likeness to stored conversations: the first message and the
    tools at hand are compared with those of each adapter's own tasks, of training tasks that the
    base agent solved (label: base model), and of those that failed for lack of a capability (label:
    its adapter). Contrast cases are no examples for the base model: an adapter solves them too, so
    they would only draw tasks away from it."""

    name: Literal["retrieval"] = "retrieval"
    examples: int = field(default=256, metadata=number(1))
    """Most examples per label and source (ours; on the development split 32 name a needed
    capability for 38 of 76 tasks, 128 for 42, 256 for 50)."""
    tools: float = field(default=0.7, metadata=number(0, 1))
    """Weight of the tools at hand in the similarity; 0 compares first messages only, as published.
    That a tool is missing shows in the tools alone: of those 76 tasks 65 go to a needed adapter at
    0.7, 62 at 0.5, 57 at 0 (ours)."""
    top_k: int = field(default=5, metadata=number(1))
    """Neighbours (published retrieval variant)."""
    threshold: float = field(default=0.35, metadata=number(0, 1))
    """Smallest cosine of a neighbour (published 0.5, for embeddings; ours is for word counts, whose
    cosines are smaller: at 0.5 the base model gets 27 of those 76 tasks, at 0.35 it gets 9)."""

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        examples: list[Example] = []
        for t in trained:
            first = first_steps(seen.lab, t.side(contrast=False)[: self.examples])
            examples += [(text, t.adapter.name, tools) for text, tools in map(read_opening, first)]
        known = seen.analysis.known([t.name for t in trained])
        examples += [(k.text, seen.otherwise, k.tools) for k in known if k.solved][: self.examples]
        for t in trained:
            lacking = [k for k in known if not k.solved and k.lacking == t.name]
            examples += [(k.text, t.adapter.name, k.tools) for k in lacking[: self.examples]]
        examples = list(dict.fromkeys(e for e in examples if e[0].strip()))
        tools = sorted({name for _, _, at_hand in examples for name in at_hand})
        place = {name: i for i, name in enumerate(tools)}
        return {
            "kind": "retrieval",
            "examples": [[text, name, [place[t] for t in ts]] for text, name, ts in examples],
            "tools": tools,
            "tools_weight": self.tools,
            "top_k": self.top_k,
            "threshold": self.threshold,
        }


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


@dataclass(frozen=True)
class Both(Retrieval):
    """The base model is asked about those that retrieval finds (published)."""

    needs = (LETTERS,)
    asks = True

    name: Literal["both"] = "both"  # type: ignore[assignment]
    share: float = field(default=0.0, metadata=number(0, 1))
    """As with zero_shot."""

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        asked = ZeroShot(share=self.share).describe(trained, seen)
        return {"kind": "both", "retrieval": super().describe(trained, seen), "zero_shot": asked}


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


@dataclass(frozen=True)
class Ties(Route):
    """A TIES merge of all adapters, for every task (arXiv 2306.01708)."""

    name: Literal["ties"] = "ties"
    density: float = field(default=0.2, metadata=number(0.001, 1))
    """The share of each update's values that is kept (published for TIES)."""

    def describe(self, trained: Sequence[Trained], seen: RouterData) -> dict[str, Any]:
        parts = [[t.adapter.name, 1.0] for t in trained]
        return {"kind": "sum", "parts": parts, "density": self.density}

    def check_base(self, base: AgentSpec) -> None:
        if (own := start_of(base)) is not None:
            raise UserError(
                "method.route=ties merges updates of the bare model, and here each of them would "
                f"hold {own.name!r} of the agent that the run begins with. Set `method.route` to "
                "another route, such as linear, or take `agent` away."
            )


AnyRoute = (
    Classifier | Soft | TurnRoute | GateRoute | Retrieval | ZeroShot | Both | LinearRoute | Ties
)
