"""A small phone and a task on it, for the tests of the embedded world."""

from __future__ import annotations

from typing import Any

from trace_bench.core.types import Task

NOW = 1_700_000_000  # Tuesday 14 November 2023, 22:13:20 UTC

ME, ANNA = "+14155550100", "+14155550132"
START: dict[str, Any] = {
    "SETTING": {"wifi": True, "cellular": True, "location_service": True},
    "CONTACT": [
        {"person_id": "me", "name": "Ola Nord", "phone_number": ME, "is_self": True},
        {"person_id": "anna", "name": "Anna Berg", "phone_number": ANNA, "relationship": "friend"},
    ],
    "MESSAGING": [
        {
            "message_id": "m1",
            "sender_person_id": "anna",
            "sender_phone_number": ANNA,
            "recipient_person_id": "me",
            "recipient_phone_number": ME,
            "content": "Bring the blue umbrella",
            "creation_timestamp": NOW - 3600,
        }
    ],
    "REMINDER": [
        {"reminder_id": "r1", "content": "Water the tomatoes"}
        | {"creation_timestamp": NOW - 7200, "reminder_timestamp": NOW + 7200}
    ],
}


def start(**setting: Any) -> dict[str, Any]:
    """The start state with other settings."""
    return {**START, "SETTING": {**START["SETTING"], **setting}}


def milestone(database: str, row: dict[str, Any], *guards: str) -> dict[str, Any]:
    """That the database holds the row."""
    constraint = {"database": database, "kind": "snapshot", "rows": [row]}
    return {"constraints": [constraint], "guards": [*guards]}


def wifi_task(**changes: Any) -> Task:
    """Switch wifi off and say so."""
    told = {"sender": "AGENT", "recipient": "USER", "content": "Wifi is turned off"}
    goals = [milestone("SETTING", {"wifi": False}, "CONTACT"), milestone("SANDBOX", told)]
    data: dict[str, Any] = {
        "now": NOW,
        "start": START,
        "tools": ["set_wifi_status", "get_wifi_status", "search_contacts", "remove_contact"],
        "augmentation": "none",
        "system": "You help with a phone.",
        "user": {
            "opening": "Turn wifi off",
            "answers": [
                {"keywords": ["which", "who"], "reply": "Anna"},
                {"keywords": ["which"], "reply": "Berg"},
            ],
            "followups": [],
            "fallback": "Please decide yourself",
        },
        "max_messages": 30,
        "milestones": goals,
        "edges": [[0, 1]],
    }
    data.update(changes)
    return Task("test/wifi", "toolsandbox", "test", 3, data)
