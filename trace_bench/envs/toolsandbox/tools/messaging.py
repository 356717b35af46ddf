"""Tools of text messages."""

from __future__ import annotations

from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, Row, ToolFault
from trace_bench.envs.toolsandbox.tools.contact import self_contact
from trace_bench.envs.toolsandbox.tools.matching import (
    TIMES,
    check_phone_number,
    require_any,
    search,
)
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec, optional, required, tool

_FUZZY = {"content": 50.0}


def send_message_with_phone_number(world: Databases, phone_number: str, content: str) -> str:
    check_phone_number(phone_number)
    if not world.setting["cellular"]:
        raise ToolFault("ConnectionError", "Cellular service is off")
    sender = self_contact(world)
    if sender is None:
        raise ToolFault("ValueError", "The user has no self contact")
    book = world.rows("CONTACT")
    recipient = next((row for row in book if row["phone_number"] == phone_number), None)
    return world.add(
        "MESSAGING",
        {
            "sender_person_id": sender["person_id"],
            "sender_phone_number": sender["phone_number"],
            "recipient_person_id": recipient["person_id"] if recipient else None,
            "recipient_phone_number": phone_number,
            "content": content,
            "creation_timestamp": world.now,
        },
    )


def search_messages(world: Databases, **criteria: Any) -> list[Row]:
    require_any(criteria)
    for column in ("sender_phone_number", "recipient_phone_number"):
        if column in criteria:
            check_phone_number(criteria[column])
    return search(world.rows("MESSAGING"), criteria, _FUZZY)


def tools() -> tuple[ToolSpec, ...]:
    return (
        tool(
            "messaging",
            send_message_with_phone_number,
            "Send a text message; gives its id. Needs cellular service.",
            required("phone_number", "string", "recipient's number in E.164 form"),
            required("content", "string", "text of the message"),
        ),
        tool(
            "messaging",
            search_messages,
            "Find messages that match all given fields; content approximately.",
            optional("message_id", "string", "id of the message"),
            optional("sender_person_id", "string", "contact id of the sender"),
            optional("sender_phone_number", "string", "number of the sender in E.164 form"),
            optional("recipient_person_id", "string", "contact id of the recipient"),
            optional("recipient_phone_number", "string", "number of the recipient in E.164 form"),
            optional("content", "string", "text to look for"),
            optional(
                "creation_timestamp_lowerbound", "number", "sent at or after, unix time", TIMES
            ),
            optional(
                "creation_timestamp_upperbound", "number", "sent at or before, unix time", TIMES
            ),
        ),
    )
