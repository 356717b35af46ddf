"""Tasks and a score for the box of `mcp_box.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def tasks() -> dict[str, list[dict[str, Any]]]:
    names = {"train": ["pen", "cup"], "dev": ["key"], "test": ["hat", "nut"]}
    return {
        split: [{"ask": f"Put a {thing} into the box.", "thing": thing} for thing in things]
        for split, things in names.items()
    }


def score(
    task: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], call: Callable[..., str]
) -> float:
    """1 for the thing alone in the box, a half for it among others."""
    found = call("look", {}).split(", ")
    return (task["thing"] in found) * (1.0 if len(found) == 1 else 0.5)


def broken(task: Any, messages: Any, call: Any) -> float:
    raise ZeroDivisionError("no things")
