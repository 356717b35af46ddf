"""Routing: which adapter acts, decided once per conversation before the first turn (step 4).

Classifier (the default, by the rule of results/protocol.md): a logistic regression on the base
model's hidden state, learned from the openings of the adapters' own tasks, chooses one adapter, and
the others' updates are added with a share; soft weighs all of them by its probabilities. Retrieval:
the first message and the tools at hand are compared with those of each adapter's own tasks (label:
the adapter), of training tasks that the base agent solved (label: base model), and of training
tasks that failed for lack of a capability (label: its adapter). Contrast cases are no examples for
the base model: an adapter is trained on them too and solves them, so all they would do is draw
tasks away from it. Zero-shot: the base model is asked for the letter of one of the adapters'
descriptions, or of "none of these". Both: it is asked about those that retrieval finds. Turn: a
linear classifier on words chooses anew at every turn, learned from training rollouts. Linear and
ties use one merge of all adapters always: yardsticks for what a choice brings. The description
made here is plain JSON; the policies turn it into a router.

The published router is the zero-shot one. It needs a model that follows an instruction it has never
seen; the tiny agent, which knows only tool conversations, cannot.

Two yardsticks tell how much routing costs. The oracle route takes for each task the adapter that
does best on it; it needs every adapter's score on every task, so evaluation runs it, without
charge. "One adapter on all synthetic environments" needs no router, but its training is not free:
it is this method with `adapters=joint`, a run and a ledger of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab
from trace_bench.core.types import AgentSpec
from trace_bench.methods.trace.classifier import Openings, steps
from trace_bench.methods.trace.settings import RoutingSettings
from trace_bench.methods.trace.synthesis.draw import read_opening
from trace_bench.methods.trace.training import JOINT, Trained
from trace_bench.methods.trace.turns import Conversations
from trace_bench.policies.routing.classifier import LOCK
from trace_bench.policies.routing.merge import around
from trace_bench.policies.routing.zero_shot import VERSION
from trace_bench.trainers.record import start_of

Example = tuple[str, str | None, tuple[str, ...]]  # text, adapter (None: base model), tools


@dataclass(frozen=True)
class Known:
    """A training task of the analysis: its first message and tools, whether the base agent solved
    it in most of its rollouts, and which capability its failures lacked (the first in training
    order), if any."""

    text: str
    tools: tuple[str, ...]
    solved: bool
    lacking: str | None


def check_base(base: AgentSpec, settings: RoutingSettings) -> None:
    """Raises UserError for TIES on an agent with an adapter: it merges updates of the bare model
    by sign and size, and each adapter's update would hold the agent's own."""
    if settings.route == "ties" and (own := start_of(base)) is not None:
        raise UserError(
            f"method.route=ties merges updates of the bare model, and here each of them would hold "
            f"{own.name!r} of the agent that the run begins with. Set `method.route` to another "
            "route, such as linear, or take `agent` away."
        )


def describe(
    lab: Lab,
    trained: Sequence[Trained],
    known: Sequence[Known],
    skills: Mapping[str, str],
    learned: tuple[Openings, Conversations],
    settings: RoutingSettings,
    otherwise: str | None = None,
) -> dict[str, Any] | None:
    """The router as JSON, or None when one adapter serves all tasks. `skills`: what each capability
    is, in words; `learned`: from openings of the adapters' own tasks, for the classifier, and from
    their training rollouts, for the choice at every turn; `otherwise`: the base agent's adapter,
    from which the others were trained on, and which acts where none is chosen."""
    if any(t.job.name == JOINT for t in trained):
        return None
    openings, conversations = learned
    instead = {} if otherwise is None else {"otherwise": otherwise}
    if settings.route == "turn":
        return {**conversations.router(trained), **instead}
    if settings.route in ("linear", "ties"):
        return {**_merged([t.adapter.name for t in trained], settings, otherwise), **instead}
    if settings.route in ("classifier", "soft", "gate"):
        gate, soft = settings.route == "gate", settings.route != "classifier"
        chosen = openings.classifier(trained, settings.gate_warm or not gate)
        lock = {"lock": LOCK} if gate else {}
        more = {"others": settings.route_others, "soft": soft, **lock}
        return {"kind": "classifier", **chosen, **more, **instead}
    offered = [[t.adapter.name, skills[t.job.name]] for t in trained]
    zero_shot: dict[str, Any] = {"kind": "zero_shot", "skills": offered, "prompt": VERSION}
    if settings.route_share:
        zero_shot["share"] = settings.route_share
    if settings.route == "zero_shot":
        return {**zero_shot, **instead}
    retrieval = _retrieval(lab, trained, known, settings, otherwise)
    if settings.route == "both":
        return {"kind": "both", "retrieval": retrieval, "zero_shot": zero_shot, **instead}
    return {**retrieval, **instead}


def _merged(
    names: Sequence[str], settings: RoutingSettings, otherwise: str | None
) -> dict[str, Any]:
    """One merge of all adapters for every task, which needs no choice."""
    if settings.route == "ties":
        parts = [[name, 1.0] for name in names]
        return {"kind": "sum", "parts": parts, "density": settings.route_density}
    parts = [[name, settings.route_weight] for name in names]
    if otherwise is not None:
        parts.append([otherwise, around([settings.route_weight] * len(names))])
    return {"kind": "sum", "parts": parts}


def _retrieval(
    lab: Lab,
    trained: Sequence[Trained],
    known: Sequence[Known],
    settings: RoutingSettings,
    otherwise: str | None,
) -> dict[str, Any]:
    adapters = {t.job.name: t.adapter.name for t in trained}
    examples: list[Example] = []
    for t in trained:
        examples += _own(lab, t, settings)
    solved = [k for k in known if k.solved][: settings.route_examples]
    examples += [(k.text, otherwise, k.tools) for k in solved]
    if settings.route_failures:
        examples += _failures(adapters, known, settings.route_examples)
    examples = _unique(examples)
    tools = sorted({name for _, _, at_hand in examples for name in at_hand})
    place = {name: i for i, name in enumerate(tools)}
    return {
        "kind": "retrieval",
        "examples": [[text, name, [place[t] for t in ts]] for text, name, ts in examples],
        "tools": tools,
        "tools_weight": settings.route_tools,
        "top_k": settings.route_top_k,
        "threshold": settings.route_threshold,
    }


def _own(lab: Lab, trained: Trained, settings: RoutingSettings) -> list[Example]:
    """Openings of the tasks that one adapter was trained on, without contrast cases."""
    tasks = [t for t in trained.job.tasks if not t.data.get("contrast", False)]
    examples: list[Example] = []
    for first in steps(lab, tasks[: settings.route_examples]):
        text, tools = read_opening(first)
        examples.append((text, trained.adapter.name, tools))
    return examples


def _failures(adapters: Mapping[str, str], known: Sequence[Known], most: int) -> list[Example]:
    """Openings of training tasks whose failures lacked a trained capability."""
    out: list[Example] = []
    for name, adapter in adapters.items():
        lacking = [k for k in known if not k.solved and k.lacking == name]
        out += [(k.text, adapter, k.tools) for k in lacking[:most]]
    return out


def _unique(examples: Sequence[Example]) -> list[Example]:
    """Without repetitions and empty texts, in order."""
    return list(dict.fromkeys(e for e in examples if e[0].strip()))
