"""What a task of the phone world rewards: milestones and minefields, read from plain JSON when an
episode begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.envs.toolsandbox.databases import without_nulls

LONGEST = 300  # characters


def name_of(milestone: Mapping[str, Any]) -> str:
    """What it asks for, in short."""
    parts = []
    for constraint in milestone["constraints"]:
        trace = constraint["kind"] == "tool_trace"
        rows = (" or " if trace else "; ").join(_row(row, trace) for row in constraint["rows"])
        what = "call" if trace else f"{constraint['database']} {constraint['kind']}:"
        parts.append(f"{what} {rows}")
    if milestone.get("guards"):
        names = (g if isinstance(g, str) else g["database"] for g in milestone["guards"])
        parts.append(f"unchanged: {', '.join(names)}")
    text = " and ".join(parts)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def told_by(milestone: Mapping[str, Any]) -> str | None:
    """The text that the user is to be told, or None for milestones about something else."""
    told = (c["rows"] for c in milestone["constraints"] if c["database"] == SANDBOX)
    texts = (row.get("content") for rows in told for row in rows)
    return next((text for text in texts if isinstance(text, str)), None)


def _row(row: Mapping[str, Any], trace: bool) -> str:
    values = row.get("arguments", {}) if trace else row
    text = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return f"{row['name']}({text})" if trace else text


Measure = str | Mapping[str, float]
Columns = tuple[tuple[str, Any, Measure], ...]
"""What a row is compared with: (column, target, measure)."""

SANDBOX = "SANDBOX"
# Texts that people word differently; all other columns are compared exactly.
_ROUGE: Mapping[str, tuple[str, ...]] = {
    "SANDBOX": ("content",),
    "MESSAGING": ("content",),
    "REMINDER": ("content",),
    "CONTACT": ("relationship",),
    "SETTING": (),
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """`kind` says what is compared with the rows of `columns`: the whole database ("snapshot"), its
    difference to the reference moment ("added", "removed", "updated") or a call ("tool_trace").

    `since` is the milestone whose matched moment is the reference, None the episode's start."""

    database: str
    kind: str
    columns: tuple[Columns, ...]
    names: tuple[str, ...] = ()  # of the tools, for "tool_trace"
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A database that must be as it was at the reference moment, see `Constraint.since`."""

    database: str
    since: int | None = None


@dataclass(frozen=True, slots=True)
class GoalMilestone:
    """`name`: what it asks for, in short; `tells`: the text that the user is to be told, if any."""

    constraints: tuple[Constraint, ...]
    guards: tuple[Guard, ...]
    name: str = ""
    tells: str | None = None

    @property
    def references(self) -> list[int]:
        """The earlier milestones that it refers to."""
        starts = [c.since for c in self.constraints] + [g.since for g in self.guards]
        return [since for since in starts if since is not None]


@dataclass(frozen=True, slots=True)
class Goal:
    """A DAG of milestones. `before[i]` is the bit set of all that must not come after i; `linked`
    is the bit set of those that the graph has, see `read_goal`."""

    milestones: tuple[GoalMilestone, ...]
    before: tuple[int, ...]
    linked: int
    weights: tuple[float, ...]


def read_goal(
    milestones: Sequence[Mapping[str, Any]],
    edges: Sequence[Sequence[int]] | None,
    weights: Sequence[float] | None = None,
) -> Goal:
    """The goal of a task. Edges that are None make a chain.

    As in the official code the edges are the graph: of several milestones, one that no edge names
    is never matched and counts as 0, and without any edge there is no graph, so that milestones
    count as met and minefields as avoided. A single milestone needs no edge."""
    read = tuple(_milestone(m) for m in milestones)
    if edges is None:
        edges = [(i, i + 1) for i in range(len(read) - 1)]
    before = _ancestors(len(read), edges)
    named = {0} if len(read) == 1 else {i for edge in edges for i in edge}
    values = tuple(float(w) for w in weights) if weights is not None else (1.0,) * len(read)
    return Goal(read, before, sum(1 << i for i in named), values)


def _ancestors(count: int, edges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    before = [0] * count
    for first, second in edges:
        before[second] |= 1 << first
    # Closing the relation takes as many rounds as the longest path.
    for _ in range(count):
        for i in range(count):
            for j in range(count):
                if before[i] >> j & 1:
                    before[i] |= before[j]
    return tuple(before)


def _milestone(data: Mapping[str, Any]) -> GoalMilestone:
    guards = tuple(map(_guard, data.get("guards", ())))
    constraints = tuple(_constraint(c) for c in data["constraints"])
    return GoalMilestone(constraints, guards, name_of(data), told_by(data))


def _guard(data: str | Mapping[str, Any]) -> Guard:
    """A database's name, or {"database", "since"}."""
    return Guard(data) if isinstance(data, str) else Guard(data["database"], data.get("since"))


def _constraint(data: Mapping[str, Any]) -> Constraint:
    database, kind, measures = data["database"], data["kind"], data.get("measures") or {}
    if kind == "tool_trace":
        rows = [row.get("arguments", {}) for row in data["rows"]]
        columns = [tuple((n, t, measures.get(n, "exact")) for n, t in row.items()) for row in rows]
        names = tuple(row["name"] for row in data["rows"])
        return Constraint(SANDBOX, kind, tuple(columns), names)
    targets = data["rows"] if kind == "snapshot" else without_nulls(data["rows"])
    columns = [_columns(row, measures, _ROUGE[database]) for row in targets]
    return Constraint(database, kind, tuple(columns), (), data.get("since"))


def _columns(
    row: Mapping[str, Any], measures: Mapping[str, Measure], texts: Sequence[str] = ()
) -> Columns:
    """`texts`: columns that are compared by Rouge unless `measures` says otherwise."""
    columns = [
        (name, target, measures.get(name, "rouge_l" if name in texts else "exact"))
        for name, target in row.items()
    ]
    # Cheap comparisons first: a row that differs exactly never reaches Rouge.
    return tuple(sorted(columns, key=lambda column: column[2] == "rouge_l"))
