"""Requests about text messages."""

from __future__ import annotations

from trace_bench.envs.toolsandbox.scenarios.pools import Choices
from trace_bench.envs.toolsandbox.scenarios.requests import contacts
from trace_bench.envs.toolsandbox.scenarios.requests.settings import SETTERS
from trace_bench.envs.toolsandbox.scenarios.solver import (
    GiveUp,
    Request,
    Solution,
    Solver,
    Steps,
    answer,
)

SEND = "send_message_with_phone_number"
SEND_TOOLS = ("search_contacts", SEND, *SETTERS)
_CONTENT_KEYWORDS = ("message say", "content")


def send_number(choices: Choices, raw: bool = False, missing: str = "") -> Request:
    """Send a text to a number. `raw`: the number is not in E.164 form; `missing`: "content" or
    "number" is not given until asked for."""
    number, content = choices.phone(), choices.content()
    spoken = contacts.spoken_number(number) if raw else number

    def solution(solver: Solver) -> Solution:
        text = (yield from _ask_content(solver)) if missing == "content" else content
        to = (yield from contacts.ask_number(solver)) if missing == "number" else spoken
        yield from solver.call(
            SEND, phone_number=contacts.number_argument(solver, to), content=text
        )
        return "The message is sent."

    answers = []
    if missing == "content":
        answers = answer(content, *_CONTENT_KEYWORDS)
    elif missing == "number":
        answers = answer(spoken, "number", "who")
    kind = f"send_no_{missing}" if missing else "send"
    clause = choices.clause(kind, to=spoken, content=content)
    return Request(clause, solution, SEND_TOOLS, SEND, answers=answers)


def send_name(
    choices: Choices, ambiguous: bool = False, missing: bool = False, by: str = "name"
) -> Request:
    """Send a text to a contact. `missing`: its content is not given until asked for; `by`: "name"
    or "relationship"."""
    who = contacts.person(choices, ambiguous)
    content = choices.content()
    if by == "relationship":
        who = contacts.by_relationship(choices, who)

    def solution(solver: Solver) -> Solution:
        row = yield from contacts.find_contact(solver, who)
        text = (yield from _ask_content(solver)) if missing else content
        yield from solver.call(SEND, phone_number=row["phone_number"], content=text)
        return "The message is sent."

    kind = "send_name_no_content" if missing else "send_name"
    clause = choices.clause(kind, to=who.phrase, content=content)
    answers = [*who.answers, *answer(content, *_CONTENT_KEYWORDS)] if missing else who.answers
    return Request(clause, solution, SEND_TOOLS, SEND, contacts=who.rows, answers=answers)


def _ask_content(solver: Solver) -> Steps:
    return (yield from solver.ask("What should the message say?", "hello"))


def last_message(choices: Choices, ambiguous: bool = False) -> Request:
    """Read out what a contact wrote."""
    who, content = contacts.person(choices, ambiguous), choices.content()
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
        row = yield from contacts.find_contact(solver, who)
        found = yield from solver.call("search_messages", sender_person_id=row["person_id"])
        if not found:
            raise GiveUp("Sorry, I found no message.")
        return f'The message says "{found[0]["content"]}".'

    return Request(
        choices.clause("last_message", name=who.phrase), solution,
        ("search_contacts", "search_messages", SEND), "search_messages",
        contacts=who.rows, messages=[message], answers=who.answers,
    )  # fmt: skip
