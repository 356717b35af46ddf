"""The labelling program: NA, PRESENT or LACKING for every (trajectory, capability) pair.

It compares a trajectory with the task's reference, which it has replayed for its results, and with
the milestones of the score, where there are any. It never looks at a task's data. Controls say
LACKING only where no capability explains more.
"""

from __future__ import annotations

from collections.abc import Mapping

from trace_bench.core.types import StopReason, Trajectory
from trace_bench.methods.trace.analysis.capability_rules import LACKING, NA, PRESENT, RULES, Rule
from trace_bench.methods.trace.analysis.case import Case
from trace_bench.methods.trace.analysis.evidence import Conversation, read
from trace_bench.methods.trace.analysis.vocabulary import VOCABULARY, Label


def label(reference: Conversation, trajectory: Trajectory) -> dict[str, Label]:
    """Labels of all capabilities of the vocabulary, in its order. Never raises for what an agent
    did; expects a scored trajectory of the reference's task."""
    score = trajectory.score
    case = Case(
        reference=reference,
        agent=read(trajectory.messages),
        stop=trajectory.stop,
        milestones=score.milestones if score is not None else (),
        forbidden=score is not None and bool(score.minefields),
        malformed=any(turn.malformed for turn in trajectory.turns),
    )
    found = {name: rule(case) for name, rule in RULES.items()}
    explained = LACKING in found.values()
    for capability in VOCABULARY:
        if capability.control:
            verdict = CONTROLS[capability.name](case)
            found[capability.name] = PRESENT if verdict is LACKING and explained else verdict
    return {c.name: found[c.name] for c in VOCABULARY}


# -- controls ---------------------------------------------------------------------------------


def _uses_tools(case: Case) -> Label:
    if not case.reference.calls:
        return NA
    return PRESENT if case.agent.calls else LACKING


def _well_formed(case: Case) -> Label:
    if not case.agent.calls and not case.malformed:
        return NA
    bad = case.malformed or not all(c.readable for c in case.agent.calls)
    return LACKING if bad else PRESENT


def _closes(case: Case) -> Label:
    return PRESENT if case.agent.ends_with_text else LACKING


def _in_time(case: Case) -> Label:
    late = case.stop in (StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT)
    return LACKING if late else PRESENT


CONTROLS: Mapping[str, Rule] = {
    "uses_tools_at_all": _uses_tools,
    "well_formed_tool_calls": _well_formed,
    "closes_conversation": _closes,
    "stays_within_turn_limit": _in_time,
}
