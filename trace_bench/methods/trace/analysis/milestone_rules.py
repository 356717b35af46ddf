"""Rules for suites without references: what the milestones of a score and the agent's own calls
show. They see less than `capability_rules`: where values came from, what should have been asked and
what should have been checked cannot be known without a reference, and is NA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trace_bench.core.types import Milestone
from trace_bench.methods.trace.analysis.capability_rules import HIT, LACKING, NA, PRESENT, TOLD
from trace_bench.methods.trace.analysis.case import Scored
from trace_bench.methods.trace.analysis.vocabulary import Label


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


RULES: Mapping[str, Callable[[Scored], Label]] = {
    "recovers_from_errors": _recovers,
    "completes_all_parts": _completes,
    "declines_when_impossible": _declines,
    "tells_the_user": _tells,
}
