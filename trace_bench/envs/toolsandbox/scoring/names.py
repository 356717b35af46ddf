"""What a milestone asks for, in words, from its plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    for constraint in milestone["constraints"]:
        for row in constraint["rows"]:
            if constraint["database"] == "SANDBOX" and isinstance(row.get("content"), str):
                text: str = row["content"]
                return text
    return None


def _row(row: Mapping[str, Any], trace: bool) -> str:
    values = row.get("arguments", {}) if trace else row
    text = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return f"{row['name']}({text})" if trace else text
