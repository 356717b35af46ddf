"""Runs that began with the agent of earlier ones: tables show them by all that was spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trace_bench.core.errors import UserError
from trace_bench.results.records import Record


def by_total(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records as they stand in tables: each budget with what was spent before the run, so that
    only equal totals meet in a column. Where not all began alike, a method's name says after what:
    "gepa > grpo". Raises UserError for a run that began with an agent of unknown cost."""
    for record in records:
        if record.before is None:
            raise UserError(
                f"run {record.fingerprint} began with an agent of unknown cost, so it cannot stand "
                "in a table with others. Leave it out, or run it again with `agent` set to the "
                "finished run that made that agent."
            )
    alike = _alike(records)
    return tuple(
        replace(r, method=r.method if alike else name(r), budget=r.budget + (r.before or 0))
        for r in records
    )


def name(record: Record) -> str:
    """The method after those that made the agent with which it began."""
    runs = record.beginning["runs"] if record.beginning else ()
    return " > ".join([*(str(run["method"]) for run in runs), record.method])


def began_with(record: Record) -> str:
    """The agent that the run began with and what it cost; "" for the bare model."""
    if record.beginning is None:
        return ""
    made = ", ".join(_made(run) for run in record.beginning["runs"]) or "no training"
    return f"the agent of {made}"


def caption(records: Sequence[Record]) -> str:
    """A sentence for each agent that runs began with; "" where all began with the bare model."""
    found = {_mark(r): began_with(r) for r in records if r.beginning is not None}
    if not found:
        return ""
    who = "All runs" if _alike(records) else "Runs"
    listed = "; or with ".join(found.values())
    return f" {who} began with {listed}; those rollouts are counted in the budgets."


def _made(run: dict[str, object]) -> str:
    rollouts = run["rollouts"]
    spent = sum(rollouts.values()) if isinstance(rollouts, dict) else "unknown"
    taught = f" and {run['demonstrations']} demonstrations" if run["demonstrations"] else ""
    marks = run.get("marks") or []
    remarks = "".join(f"; {mark}" for mark in marks) if isinstance(marks, list) else ""
    return f"{run['method']} ({spent} rollouts{taught}, run {run['fingerprint']}{remarks})"


def began_apart(records: Sequence[Record]) -> bool:
    """Whether the runs' base agents are different ones."""
    return not _alike(records)


def _alike(records: Sequence[Record]) -> bool:
    return len({_mark(record) for record in records}) < 2


def _mark(record: Record) -> str:
    return str(record.beginning["sha256"]) if record.beginning else ""
