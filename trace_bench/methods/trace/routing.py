"""Routing: which adapter acts, decided once per conversation before the first turn (step 4).

Retrieval (the default): the first message and the tools at hand are compared with those of
synthetic tasks (label: their capability's adapter), of training tasks that the base agent solved
and, if asked for, of contrast cases (label: base model), and of training tasks that failed for lack
of a capability (label: its adapter). Zero-shot: the base model is asked for the letter of one of
the adapters' descriptions, or of "none of these". Both: it is asked about those that retrieval
finds. The description made here is plain JSON; the policies turn it into a router.

The published router is the zero-shot one. It needs a model that follows an instruction it has never
seen; the tiny agent, which knows only tool conversations, cannot, hence the default.

Two yardsticks say how much routing costs. The oracle route takes for each task the adapter that
does best on it (`oracle_route`); it needs every adapter's score on every task, so evaluation plays
it, without charge. "One adapter on all synthetic environments" needs no router, but its training
is not free: it is this method with `adapters=joint`, a run and a ledger of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.protocols import Lab
from trace_bench.core.types import Score, Task
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.methods.trace.synthesis.draw import opening
from trace_bench.methods.trace.training import JOINT, Trained
from trace_bench.policies.routing.zero_shot import VERSION

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


def describe(
    lab: Lab,
    trained: Sequence[Trained],
    known: Sequence[Known],
    skills: Mapping[str, str],
    settings: TraceSettings,
) -> dict[str, Any] | None:
    """The router as JSON, or None when one adapter serves all tasks. `skills`: what each capability
    is, in words."""
    if any(t.job.name == JOINT for t in trained):
        return None
    offered = [[t.adapter.name, skills[t.job.name]] for t in trained]
    zero_shot: dict[str, Any] = {"kind": "zero_shot", "skills": offered, "prompt": VERSION}
    if settings.route_share:
        zero_shot["share"] = settings.route_share
    if settings.route == "zero_shot":
        return zero_shot
    retrieval = _retrieval(lab, trained, known, settings)
    if settings.route == "both":
        return {"kind": "both", "retrieval": retrieval, "zero_shot": zero_shot}
    return retrieval


def _retrieval(
    lab: Lab, trained: Sequence[Trained], known: Sequence[Known], settings: TraceSettings
) -> dict[str, Any]:
    adapters = {t.job.name: t.adapter.name for t in trained}
    examples: list[Example] = []
    for t in trained:
        examples += _synthetic(lab, t, settings)
    solved = [k for k in known if k.solved][: settings.route_examples]
    examples += [(k.text, None, k.tools) for k in solved]
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


def _example(lab: Lab, task: Task, label: str | None) -> Example:
    text, tools = opening(lab.suite_of(task), task)
    return text, label, tools


def _synthetic(lab: Lab, trained: Trained, settings: TraceSettings) -> list[Example]:
    """Openings of one adapter's synthetic tasks; contrast cases belong to the base model."""
    most = settings.route_examples
    out: list[Example] = []
    for contrast in (False, True) if settings.route_contrast else (False,):
        tasks = [t for t in trained.job.tasks if bool(t.data.get("contrast", False)) is contrast]
        limit = max(1, most // 4) if contrast else most
        label = None if contrast else trained.adapter.name
        out += [_example(lab, t, label) for t in tasks[:limit]]
    return out


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


def oracle_route(scores: Mapping[str | None, Sequence[Score]]) -> list[str | None]:
    """For each task the adapter (None: base model) with the best score on it.

    `scores[name][i]` is the score of task i when `name` acts; all sequences have the same length.
    Success counts before similarity; the base model wins ties, then the earlier adapter. It is an
    upper bound and not a method: it looks at the scores it is judged by.
    """
    names: list[str | None] = sorted(scores, key=lambda n: n is not None)
    lengths = {len(scores[n]) for n in names}
    if len(lengths) > 1:
        raise ValueError(f"scores of different lengths: {sorted(lengths)}")
    return [
        max(names, key=lambda n: (scores[n][i].success, scores[n][i].similarity))
        for i in range(lengths.pop() if lengths else 0)
    ]
