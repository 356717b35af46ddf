"""Requests about the contact book and about text messages; who is meant in any request, how the
user calls them, and how their number is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from trace_bench.envs.toolsandbox.databases import COLUMNS
from trace_bench.envs.toolsandbox.scenarios.lookups import SETTERS
from trace_bench.envs.toolsandbox.scenarios.pools import RELATIONSHIPS, Choices
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CONVERT,
    DISAMBIGUATE,
    GiveUp,
    Redraw,
    Request,
    Say,
    Solution,
    Solver,
    Steps,
    answer,
)

CONTACT_TOOLS = ("add_contact", "modify_contact", "remove_contact", "search_contacts")
INVENTED_NUMBER = "+12125550100"  # what a solver goes on with that does not ask or decline
_NUMBER = ("What is the phone number?", INVENTED_NUMBER)
_CONTENT = ("What should the message say?", "hello")


@dataclass(frozen=True)
class Person:
    """A contact whom a request is about.

    contact: the row. rows: what the contact book gets; with a namesake if `ambiguous`. key: the
    column to search by ("name" or "relationship"). called: what the user calls the person.
    answers: the user's, to the question which namesake is meant."""

    contact: dict[str, Any]
    rows: list[dict[str, Any]]
    key: str
    called: str
    ambiguous: bool = False
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def needs(self) -> dict[str, Any]:
        """What a request about the person needs of the world."""
        return {"contacts": self.rows, "answers": self.answers}

    @property
    def phrase(self) -> str:
        """The person in a clause."""
        return f"my {self.called}" if self.key == "relationship" else self.called


def person(choices: Choices, ambiguous: bool = False) -> Person:
    """A contact by the whole name; if `ambiguous` by the first, which another one shares."""
    contact = choices.contact()
    name = contact["name"]
    if not ambiguous:
        return Person(contact, [contact], "name", name)
    rows = [contact]
    first, last = name.split(" ")
    while (other := choices.word("last")) == last:
        pass
    rows.insert(choices.rng.randrange(2), choices.contact_named(f"{first} {other}"))
    return Person(contact, rows, "name", first, True, answer(name, "which"))


def find_contact(solver: Solver, who: Person, invent: bool = True) -> Steps:
    """The person's row from `search_contacts`. Without that tool the solver declines or, lacking
    this capability and if `invent`, goes on with an invented person."""
    if not solver.has("search_contacts"):
        if not invent:
            raise GiveUp
        return {"person_id": "12345678", "name": who.called, "phone_number": INVENTED_NUMBER}
    rows = yield from solver.call("search_contacts", **{who.key: who.called})
    if not rows:
        raise GiveUp("Sorry, I found nobody.")
    if len(rows) > 1 and not who.ambiguous:
        raise Redraw
    if len(rows) > 1 and solver.can(DISAMBIGUATE):
        names = [row["name"] for row in rows[:2]]
        question = f"Which one do you mean: {names[0]} or {names[1]}?"
        reply = yield Say(question, milestone=True)
        return next((row for row in rows if row["name"] == reply), rows[0])
    return rows[0]


def spoken_number(number: str) -> str:
    """How people write a number: +14155550132 becomes 415-555-0132."""
    return f"{number[2:5]}-{number[5:8]}-{number[8:]}"


def number_argument(solver: Solver, spoken: str) -> str:
    """The number as the tools want it; by a solver that does not convert, only its digits."""
    if spoken.startswith("+"):
        return spoken
    digits = spoken.replace("-", "")
    return f"+1{digits}" if solver.can(CONVERT) else digits


def phone_of(choices: Choices, ambiguous: bool = False) -> Request:
    """Tell someone's number."""
    who = person(choices, ambiguous)

    def solution(solver: Solver) -> Solution:
        row = yield from find_contact(solver, who, invent=False)
        return f"The number is {row['phone_number']}."

    clause = choices.clause("phone_of", name=who.phrase)
    return Request(clause, solution, CONTACT_TOOLS, "search_contacts", **who.needs)


def add_contact(choices: Choices, raw: bool = False, missing: bool = False) -> Request:
    """`raw`: the number is not in E.164 form; `missing`: the user gives it when asked."""
    row = choices.contact()
    number, name = row["phone_number"], row["name"]
    spoken = spoken_number(number) if raw else number

    def solution(solver: Solver) -> Solution:
        told = (yield from solver.ask(*_NUMBER)) if missing else spoken
        number = number_argument(solver, told)
        yield from solver.call("add_contact", name=name, phone_number=number)
        return "The contact is added."

    clause = choices.clause("add_no_number" if missing else "add", name=name, spoken=spoken)
    answers = answer(spoken, "number") if missing else []
    return Request(clause, solution, CONTACT_TOOLS, "add_contact", answers=answers)


def modify_contact(
    choices: Choices, raw: bool = False, ambiguous: bool = False, missing: bool = False
) -> Request:
    """Give a contact another number. `raw`: not in E.164 form; `missing`: given when asked."""
    who, number = person(choices, ambiguous), choices.phone()
    spoken = spoken_number(number) if raw else number
    name = who.phrase

    def solution(solver: Solver) -> Solution:
        if not solver.has("search_contacts"):
            number = number_argument(solver, spoken)
            yield from solver.call("add_contact", name=name, phone_number=number)
            return "The contact is changed."
        row = yield from find_contact(solver, who)
        told = (yield from solver.ask(*_NUMBER)) if missing else spoken
        number = number_argument(solver, told)
        yield from solver.call("modify_contact", person_id=row["person_id"], phone_number=number)
        return "The contact is changed."

    clause = choices.clause("modify_no_number" if missing else "modify", name=name, spoken=spoken)
    answers = [*who.answers, *answer(spoken, "number")] if missing else who.answers
    return Request(
        clause, solution, CONTACT_TOOLS, "modify_contact", contacts=who.rows, answers=answers,
        invented_tools=("modify_contact", "add_contact"),
    )  # fmt: skip


def remove_contact(choices: Choices, ambiguous: bool = False) -> Request:
    who = person(choices, ambiguous)

    def solution(solver: Solver) -> Solution:
        row = yield from find_contact(solver, who, invent=False)
        yield from solver.call("remove_contact", person_id=row["person_id"])
        return "The contact is removed."

    clause = choices.clause("remove_contact", name=who.phrase)
    return Request(clause, solution, CONTACT_TOOLS, "remove_contact", **who.needs)


SEND = "send_message_with_phone_number"
SEND_TOOLS = ("search_contacts", SEND, *SETTERS)
_CONTENT_KEYWORDS = ("message say", "content")


def send_number(choices: Choices, raw: bool = False, missing: str = "") -> Request:
    """Send a text to a number. `raw`: the number is not in E.164 form; `missing`: "content" or
    "number" is not given until asked for."""
    number, content = choices.phone(), choices.content()
    spoken = spoken_number(number) if raw else number

    def solution(solver: Solver) -> Solution:
        text = (yield from solver.ask(*_CONTENT)) if missing == "content" else content
        to = (yield from solver.ask(*_NUMBER)) if missing == "number" else spoken
        yield from solver.call(SEND, phone_number=number_argument(solver, to), content=text)
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
    who = person(choices, ambiguous)
    content = choices.content()
    if by == "relationship":  # the person is called "my sister" or the like
        called = who.contact["relationship"] = choices.rng.choice(RELATIONSHIPS)
        who = replace(who, key="relationship", called=called)

    def solution(solver: Solver) -> Solution:
        row = yield from find_contact(solver, who)
        text = (yield from solver.ask(*_CONTENT)) if missing else content
        yield from solver.call(SEND, phone_number=row["phone_number"], content=text)
        return "The message is sent."

    kind = "send_name_no_content" if missing else "send_name"
    clause = choices.clause(kind, to=who.phrase, content=content)
    answers = [*who.answers, *answer(content, *_CONTENT_KEYWORDS)] if missing else who.answers
    return Request(clause, solution, SEND_TOOLS, SEND, contacts=who.rows, answers=answers)


def last_message(choices: Choices, ambiguous: bool = False) -> Request:
    """Read out what a contact wrote."""
    who, content = person(choices, ambiguous), choices.content()
    message = {
        **COLUMNS["MESSAGING"],
        "message_id": choices.row_id(),
        "sender_person_id": who.contact["person_id"],
        "sender_phone_number": who.contact["phone_number"],
        "content": content,
    }

    def solution(solver: Solver) -> Solution:
        row = yield from find_contact(solver, who)
        messages = yield from solver.call("search_messages", sender_person_id=row["person_id"])
        if not messages:
            raise GiveUp("Sorry, I found no message.")
        return f'The message says "{messages[0]["content"]}".'

    clause = choices.clause("last_message", name=who.phrase)
    tools = ("search_contacts", "search_messages", SEND)
    return Request(clause, solution, tools, "search_messages", messages=[message], **who.needs)
