"""A small phone and a task on it, for the tests of the embedded world."""

from __future__ import annotations

from typing import Any

from trace_bench.core.types import Task

NOW = 1_700_000_000  # Tuesday 14 November 2023, 22:13:20 UTC

START: dict[str, Any] = {
    "SETTING": {"wifi": True, "cellular": True, "location_service": True},
    "CONTACT": [
        {"person_id": "me", "name": "Ola Nord", "phone_number": "+14155550100", "is_self": True},
        {
            "person_id": "anna",
            "name": "Anna Berg",
            "phone_number": "+14155550132",
            "relationship": "friend",
        },
    ],
    "MESSAGING": [
        {
            "message_id": "m1",
            "sender_person_id": "anna",
            "sender_phone_number": "+14155550132",
            "recipient_person_id": "me",
            "recipient_phone_number": "+14155550100",
            "content": "Bring the blue umbrella",
            "creation_timestamp": NOW - 3600,
        }
    ],
    "REMINDER": [
        {
            "reminder_id": "r1",
            "content": "Water the tomatoes",
            "creation_timestamp": NOW - 7200,
            "reminder_timestamp": NOW + 7200,
        }
    ],
}


def start(**setting: Any) -> dict[str, Any]:
    """The start state with other settings."""
    return {**START, "SETTING": {**START["SETTING"], **setting}}


def wifi_task(**changes: Any) -> Task:
    """Switch wifi off and say so."""
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
        "milestones": [
            {
                "constraints": [
                    {"database": "SETTING", "kind": "snapshot", "rows": [{"wifi": False}]}
                ],
                "guards": ["CONTACT"],
            },
            {
                "constraints": [
                    {
                        "database": "SANDBOX",
                        "kind": "snapshot",
                        "rows": [
                            {
                                "sender": "AGENT",
                                "recipient": "USER",
                                "content": "Wifi is turned off",
                            }
                        ],
                    }
                ],
                "guards": [],
            },
        ],
        "edges": [[0, 1]],
    }
    data.update(changes)
    return Task("test/wifi", "toolsandbox", "test", 3, data)
