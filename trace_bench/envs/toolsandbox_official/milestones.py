"""The package's evaluation of an episode as typed milestones and minefields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trace_bench.core.types import Milestone

PERFECT = 1 - 1e-9
LONGEST = 300  # characters of a name


def milestones_of(
    matcher: Any, mapping: Mapping[int, Any], places: Sequence[int], minefields: bool = False
) -> tuple[Milestone, ...]:
    """The result of each milestone of a matcher. `mapping`: number to (row of the message log,
    similarity); `places`: the index of each row's message, the last one's for rows after it. A
    minefield counts as hit at any similarity above 0."""
    out = []
    for number, milestone in enumerate(matcher.milestones):
        row, similarity = mapping.get(number, (None, 0.0))
        similarity = min(max(float(similarity), 0.0), 1.0)
        hit = similarity > 0.0 if minefields else similarity > PERFECT
        met = similarity > 0.0 and row is not None
        place = places[min(int(row), len(places) - 1)] if met else None
        out.append(Milestone(_name(milestone), similarity, hit, place, _tells(milestone)))
    return tuple(out)


def _name(milestone: Any) -> str:
    """A short name: the milestone's constraints that have values (guards have none)."""
    parts = []
    for constraint in milestone.snapshot_constraints:
        rows = _rows(constraint)
        if rows:
            measure = constraint.snapshot_constraint
            measure = measure.func if isinstance(measure, partial) else measure
            what = str(measure.__name__).removesuffix("_similarity")
            shown = "; ".join(
                ", ".join(f"{key}={_short(value)}" for key, value in row.items()) for row in rows
            )
            parts.append(f"{constraint.database_namespace} {what}: {shown}")
    text = " and ".join(parts) or "nothing else changed"
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _tells(milestone: Any) -> str | None:
    """The text that the agent must send to the user, for a milestone that requires one."""
    for constraint in milestone.snapshot_constraints:
        for row in _rows(constraint):
            told = str(row.get("recipient")) == "USER" and str(row.get("sender")) == "AGENT"
            if told and isinstance(row.get("content"), str):
                text: str = row["content"]
                return text
    return None


def _rows(constraint: Any) -> list[dict[str, Any]]:
    target = constraint.target_dataframe
    return [] if target is None else list(target.to_dicts())


def _short(value: Any) -> str:
    """A value as short text; a tool trace (JSON in a string) as a call."""
    try:
        call: Any = json.loads(value) if isinstance(value, str) else None
        arguments = ", ".join(f"{k}={v!r}" for k, v in call["arguments"].items())
        return f"{call['tool_name']}({arguments})"
    except (ValueError, TypeError, KeyError, AttributeError):
        return repr(value)
