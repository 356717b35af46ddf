"""The labelling program: NA, PRESENT or LACKING for every (trajectory, capability) pair.

It compares a trajectory with the task's reference, which it has replayed for its results, and with
the milestones of the score, where there are any; without a reference the milestones alone have to
do (`milestone_rules`). It never looks at a task's data. Controls say LACKING only where no
capability explains more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trace_bench.core.types import StopReason, Trajectory
from trace_bench.methods.trace.analysis import milestone_rules
from trace_bench.methods.trace.analysis.capability_rules import LACKING, NA, PRESENT, RULES
from trace_bench.methods.trace.analysis.case import Case, Facts, Scored
from trace_bench.methods.trace.analysis.evidence import Conversation, read
from trace_bench.methods.trace.analysis.vocabulary import VOCABULARY, Label


def label(known: Facts, trajectory: Trajectory) -> dict[str, Label]:
    """Labels of all capabilities of the vocabulary, in its order, by what is known of the task.
    Never raises for what an agent did; expects a scored trajectory."""
    score = trajectory.score
    listed = () if isinstance(known, Conversation) else known
    case = Scored(
        agent=read(trajectory.messages),
        stop=trajectory.stop,
        milestones=score.milestones or listed if score is not None else (),
        minefields=score.minefields if score is not None else (),
        malformed=any(turn.malformed for turn in trajectory.turns),
    )
    if isinstance(known, Conversation):
        case = both = Case(**vars(case), reference=known)
        found = {name: rule(both) for name, rule in RULES.items()}
    else:
        rules = milestone_rules.RULES
        found = {name: rules[name](case) if name in rules else NA for name in RULES}
    explained = LACKING in found.values()
    for capability in VOCABULARY:
        if capability.control:
            verdict = CONTROLS[capability.name](case)
            found[capability.name] = PRESENT if verdict is LACKING and explained else verdict
    return {c.name: found[c.name] for c in VOCABULARY}


# -- controls ---------------------------------------------------------------------------------


def _uses_tools(case: Scored) -> Label:
    if not case.acts:
        return NA
    return PRESENT if case.agent.calls else LACKING


def _well_formed(case: Scored) -> Label:
    if not case.agent.calls and not case.malformed:
        return NA
    bad = case.malformed or not all(c.readable for c in case.agent.calls)
    return LACKING if bad else PRESENT


def _closes(case: Scored) -> Label:
    return PRESENT if case.agent.ends_with_text else LACKING


def _in_time(case: Scored) -> Label:
    late = case.stop in (StopReason.TURN_LIMIT, StopReason.CONTEXT_LIMIT)
    return LACKING if late else PRESENT


CONTROLS: Mapping[str, Callable[[Scored], Label]] = {
    "uses_tools_at_all": _uses_tools,
    "well_formed_tool_calls": _well_formed,
    "closes_conversation": _closes,
    "stays_within_turn_limit": _in_time,
}
