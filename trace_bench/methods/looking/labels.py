"""The labelling program: NA, PRESENT or LACKING for every (trajectory, capability) pair.

It compares a trajectory with the task's reference, which it has replayed for its results, and with
the milestones of the score, where there are any (`rules`). Without a reference the milestones and
the agent's own calls have to do: where values came from, what should have been asked and what
should have been checked cannot be known then, and is NA. It never looks at a task's data. Controls
say LACKING only where no capability explains more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trace_bench.core.types import Milestone, StopReason, Trajectory
from trace_bench.methods.looking.capabilities import VOCABULARY, Label
from trace_bench.methods.looking.case import Case, Facts, Scored
from trace_bench.methods.looking.evidence import Conversation, read
from trace_bench.methods.looking.rules import HIT, LACKING, NA, PRESENT, RULES, TOLD


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
        rules = BY_MILESTONES
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


# -- without a reference ----------------------------------------------------------------------


def _done(case: Scored) -> Sequence[Milestone]:
    """Those that ask for more than words."""
    return [m for m in case.milestones if m.tells is None]


def _recovers(case: Scored) -> Label:
    """A call failed: did one of that tool succeed later? If none did and nothing is missing, the
    call was not needed."""
    if not any(c.error is not None for c in case.agent.calls):
        return NA
    if not case.agent.stuck():
        return PRESENT
    return LACKING if any(not m.hit for m in _done(case)) else NA


def _completes(case: Scored) -> Label:
    """Of several things to do some were done and others not, though nothing was in the way."""
    hits = [m.hit for m in _done(case)]
    if len(hits) < 2 or not any(hits) or case.agent.stuck():
        return NA
    return LACKING if not all(hits) and case.agent.said else PRESENT


def _declines(case: Scored) -> Label:
    """Something must not be done: was it?"""
    if not case.forbidden:
        return NA
    return LACKING if any(m.hit for m in case.minefields) else PRESENT


def _tells(case: Scored) -> Label:
    """Everything else was done: was the user told? Questions are not answers."""
    told = [m.similarity for m in case.milestones if m.tells is not None and "?" not in m.tells]
    rest = [m.similarity for m in case.milestones if m.tells is None or "?" in m.tells]
    if not told or min(rest, default=1.0) < HIT or case.agent.stuck():
        return NA
    return LACKING if min(told) < TOLD else PRESENT


BY_MILESTONES: Mapping[str, Callable[[Scored], Label]] = {
    "recovers_from_errors": _recovers,
    "completes_all_parts": _completes,
    "declines_when_impossible": _declines,
    "tells_the_user": _tells,
}
