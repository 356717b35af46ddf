"""Requests about text messages."""

from __future__ import annotations

from trace_bench.envs.toolsandbox.scenarios.pools import Choices
from trace_bench.envs.toolsandbox.scenarios.requests.contacts import (
    ask_number,
    by_relationship,
    find_contact,
    number_argument,
    person,
    spoken_number,
)
from trace_bench.envs.toolsandbox.scenarios.requests.settings import SETTERS
from trace_bench.envs.toolsandbox.scenarios.solver import (
    GiveUp,
    Request,
    Solution,
    Solver,
    Steps,
    ask_user,
    call_tool,
)

SEND = "send_message_with_phone_number"
SEND_TOOLS = ("search_contacts", SEND, *SETTERS)
_CONTENT_KEYWORDS = ("message say", "content")


def send_number(choices: Choices, raw: bool = False, missing: str = "") -> Request:
    """Send a text to a number. `raw`: the number is not in E.164 form; `missing`: "content" or
    "number" is not given until asked for."""
    number, content = choices.phone(), choices.content()
    spoken = spoken_number(number) if raw else number

    def solution(solver: Solver) -> Solution:
        solver.need(SEND)
        text = (yield from _ask_content(solver)) if missing == "content" else content
        to = (yield from ask_number(solver)) if missing == "number" else spoken
        arguments = {"phone_number": number_argument(solver, to), "content": text}
        yield from call_tool(solver, SEND, arguments)
        return "The message is sent."

    answers = []
    if missing == "content":
        clause = _clause_without_content(choices, "send_no_content", spoken)
        answers = [{"keywords": [*_CONTENT_KEYWORDS], "reply": content}]
    elif missing == "number":
        clause = choices.clause(
            "send_no_number", f'send the message "{content}"', f'text someone "{content}"',
            f'send a text saying "{content}"', f'message my client "{content}"',
        )  # fmt: skip
        answers = [{"keywords": ["number", "who"], "reply": spoken}]
    else:
        clause = _clause_with_content(choices, "send", spoken, content)
    return Request(clause, solution, SEND_TOOLS, SEND, answers=answers)


def send_name(
    choices: Choices, ambiguous: bool = False, missing: bool = False, by: str = "name"
) -> Request:
    """Send a text to a contact. `missing`: its content is not given until asked for; `by`: "name"
    or "relationship"."""
    who = person(choices, ambiguous)
    content = choices.content()
    if by == "relationship":
        who = by_relationship(choices, who)

    def solution(solver: Solver) -> Solution:
        solver.need(SEND)
        row = yield from find_contact(solver, who)
        text = (yield from _ask_content(solver)) if missing else content
        arguments = {"phone_number": row["phone_number"], "content": text}
        yield from call_tool(solver, SEND, arguments)
        return "The message is sent."

    answers = who.answers
    if missing:
        clause = _clause_without_content(choices, "send_name_no_content", who.phrase)
        answers = [*answers, {"keywords": [*_CONTENT_KEYWORDS], "reply": content}]
    else:
        clause = _clause_with_content(choices, "send_name", who.phrase, content)
    return Request(clause, solution, SEND_TOOLS, SEND, contacts=who.rows, answers=answers)


def _ask_content(solver: Solver) -> Steps:
    return (yield from ask_user(solver, "What should the message say?", "hello"))


def _clause_with_content(choices: Choices, kind: str, to: str, content: str) -> str:
    return choices.clause(
        kind, f'text {to} "{content}"', f'send "{content}" to {to}',
        f'message {to} saying "{content}"', f'send a text to {to}: "{content}"',
        f'tell {to} "{content}"',
    )  # fmt: skip


def _clause_without_content(choices: Choices, kind: str, to: str) -> str:
    return choices.clause(
        kind, f"text {to}", f"send a message to {to}", f"message {to}", f"send {to} a text"
    )


def last_message(choices: Choices, ambiguous: bool = False) -> Request:
    """Read out what a contact wrote."""
    who, content = person(choices, ambiguous), choices.content()
    message = {
        "message_id": choices.row_id(),
        "sender_person_id": who.contact["person_id"],
        "sender_phone_number": who.contact["phone_number"],
        "recipient_person_id": None,
        "recipient_phone_number": None,
        "content": content,
        "creation_timestamp": 0,  # set when the scenario knows its clock
    }

    def solution(solver: Solver) -> Solution:
        solver.need("search_messages")
        row = yield from find_contact(solver, who)
        criteria = {"sender_person_id": row["person_id"]}
        found = yield from call_tool(solver, "search_messages", criteria)
        if not found:
            raise GiveUp("Sorry, I found no message.")
        return f'The message says "{found[0]["content"]}".'

    name = who.phrase
    clause = choices.clause(
        "last_message", f"read me the message from {name}", f"tell me what {name} wrote",
        f"find the message that {name} sent", f"show me the text from {name}",
    )  # fmt: skip
    return Request(
        clause, solution, ("search_contacts", "search_messages", SEND), "search_messages",
        contacts=who.rows, messages=[message], answers=who.answers,
    )  # fmt: skip
