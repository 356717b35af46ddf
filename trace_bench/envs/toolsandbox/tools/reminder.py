"""Tools of reminders."""

from __future__ import annotations

from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, Row
from trace_bench.envs.toolsandbox.tools.matching import (
    LATITUDES,
    LONGITUDES,
    TIMES,
    require_any,
    search,
)
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec, optional, required, tool

_FUZZY = {"content": 50.0}


def add_reminder(
    world: Databases,
    content: str,
    reminder_timestamp: float,
    latitude: float | None = None,
    longitude: float | None = None,
) -> str:
    return world.add(
        "REMINDER",
        {
            "content": content,
            "creation_timestamp": world.now,
            "reminder_timestamp": reminder_timestamp,
            "latitude": latitude,
            "longitude": longitude,
        },
    )


def modify_reminder(world: Databases, reminder_id: str, **changes: Any) -> None:
    require_any(changes)
    world.update("REMINDER", reminder_id, {**changes, "creation_timestamp": world.now})


def search_reminder(world: Databases, **criteria: Any) -> list[Row]:
    require_any(criteria)
    return search(world.rows("REMINDER"), criteria, _FUZZY)


def remove_reminder(world: Databases, reminder_id: str) -> None:
    world.remove("REMINDER", reminder_id)


def tools() -> tuple[ToolSpec, ...]:
    reminder = required("reminder_id", "string", "id of the reminder")
    place = (
        optional("latitude", "number", "latitude of its place", LATITUDES, nullable=True),
        optional("longitude", "number", "longitude of its place", LONGITUDES, nullable=True),
    )
    bounds = [
        optional(f"{column}_{side}bound", "number", f"{text} {word}, unix time", TIMES)
        for column, text in (("creation_timestamp", "created"), ("reminder_timestamp", "due"))
        for side, word in (("lower", "at or after"), ("upper", "at or before"))
    ]
    return (
        tool(
            "reminder",
            add_reminder,
            "Add a reminder; gives its id.",
            required("content", "string", "what to be reminded of"),
            required("reminder_timestamp", "number", "when to remind, unix time", TIMES),
            *place,
        ),
        tool(
            "reminder",
            modify_reminder,
            "Change fields of a reminder.",
            reminder,
            optional("content", "string", "what to be reminded of"),
            optional("reminder_timestamp", "number", "when to remind, unix time", TIMES),
            *place,
        ),
        tool(
            "reminder",
            search_reminder,
            "Find reminders that match all given fields; content approximately.",
            optional("reminder_id", "string", "id of the reminder"),
            optional("content", "string", "text to look for"),
            *bounds,
            optional("latitude", "number", "latitude of its place", LATITUDES),
            optional("longitude", "number", "longitude of its place", LONGITUDES),
        ),
        tool("reminder", remove_reminder, "Delete a reminder.", reminder),
    )
