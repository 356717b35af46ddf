"""Requests about the contact book; who is meant in any request, how the user calls them, and how
their number is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.pools import RELATIONSHIPS, Choices
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CONVERT,
    DECLINE,
    DECLINED,
    DISAMBIGUATE,
    Fault,
    GiveUp,
    Redraw,
    Request,
    Say,
    Solution,
    Solver,
    Steps,
    ask_user,
    call_tool,
)

INVENTED_NUMBER = "+12125550100"  # what a solver goes on with that does not ask or decline


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
    def phrase(self) -> str:
        """The person in a clause."""
        return f"my {self.called}" if self.key == "relationship" else self.called


def person(choices: Choices, ambiguous: bool = False) -> Person:
    """A contact, called by the whole name; if `ambiguous` by the first name, which another contact
    shares."""
    contact = choices.contact()
    name = contact["name"]
    if not ambiguous:
        return Person(contact, [contact], "name", name)
    rows = [contact]
    first, last = name.split(" ")
    other = choices.pool.last(choices.rng)
    while other == last:
        other = choices.pool.last(choices.rng)
    rows.insert(choices.rng.randrange(2), choices.contact_named(f"{first} {other}"))
    return Person(contact, rows, "name", first, True, [{"keywords": ["which"], "reply": name}])


def by_relationship(choices: Choices, who: Person) -> Person:
    """The person, now called "my sister" or the like."""
    who.contact["relationship"] = choices.rng.choice(RELATIONSHIPS)
    called = who.contact["relationship"]
    return Person(who.contact, who.rows, "relationship", called, who.ambiguous, who.answers)


def find_contact(solver: Solver, who: Person, invent: bool = True) -> Steps:
    """The person's row from `search_contacts`. Without that tool the solver declines or, lacking
    this capability and if `invent`, goes on with an invented person."""
    if "search_contacts" not in solver.tools:
        if solver.can(DECLINE) or not invent:
            raise GiveUp(DECLINED)
        return {"person_id": "12345678", "name": who.called, "phone_number": INVENTED_NUMBER}
    rows = yield from call_tool(solver, "search_contacts", {who.key: who.called})
    if not rows or isinstance(rows, Fault):
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


def number_argument(solver: Solver, given: str) -> str:
    """The number as the tools want it; by a solver that does not convert, only its digits."""
    if given.startswith("+"):
        return given
    digits = given.replace("-", "")
    return f"+1{digits}" if solver.can(CONVERT) else digits


def ask_number(solver: Solver) -> Steps:
    return (yield from ask_user(solver, "What is the phone number?", INVENTED_NUMBER))


CONTACT_TOOLS = ("add_contact", "modify_contact", "remove_contact", "search_contacts")


def phone_of(choices: Choices, ambiguous: bool = False) -> Request:
    """Tell someone's number."""
    who = person(choices, ambiguous)

    def solution(solver: Solver) -> Solution:
        row = yield from find_contact(solver, who, invent=False)
        return f"The number is {row['phone_number']}."

    name = who.phrase
    clause = choices.clause(
        "phone_of", f"find the phone number of {name}", f"look up the number of {name}",
        f"tell me the phone number of {name}", f"give me the number of {name}",
    )  # fmt: skip
    return Request(
        clause, solution, CONTACT_TOOLS, "search_contacts",
        contacts=who.rows, answers=who.answers,
    )  # fmt: skip


def add_contact(choices: Choices, raw: bool = False, missing: bool = False) -> Request:
    """`raw`: the number is not in E.164 form; `missing`: the user gives it when asked."""
    row = choices.contact()
    number, name = row["phone_number"], row["name"]
    spoken = spoken_number(number) if raw else number

    def solution(solver: Solver) -> Solution:
        solver.need("add_contact")
        given = (yield from ask_number(solver)) if missing else spoken
        arguments = {"name": name, "phone_number": number_argument(solver, given)}
        yield from call_tool(solver, "add_contact", arguments)
        return "The contact is added."

    if missing:
        clause = choices.clause(
            "add_no_number", f"add {name} to my contacts", f"save {name} as a contact",
            f"make a contact for {name}", f"put {name} in my contacts",
        )  # fmt: skip
    else:
        clause = choices.clause(
            "add", f"add {name} with number {spoken}", f"save {spoken} as {name}",
            f"add the contact {name}, {spoken}", f"put {name} in my contacts with {spoken}",
        )  # fmt: skip
    answers = [{"keywords": ["number"], "reply": spoken}] if missing else []
    return Request(clause, solution, CONTACT_TOOLS, "add_contact", answers=answers)


def modify_contact(
    choices: Choices, raw: bool = False, ambiguous: bool = False, missing: bool = False
) -> Request:
    """Give a contact another number. `raw`: it is not in E.164 form; `missing`: the user gives it
    when asked."""
    who, number = person(choices, ambiguous), choices.phone()
    spoken = spoken_number(number) if raw else number
    name = who.phrase

    def solution(solver: Solver) -> Solution:
        solver.need("modify_contact")
        if "search_contacts" not in solver.tools and not solver.can(DECLINE):
            invented = {"name": name, "phone_number": number_argument(solver, spoken)}
            yield from call_tool(solver, "add_contact", invented)
            return "The contact is changed."
        row = yield from find_contact(solver, who)
        given = (yield from ask_number(solver)) if missing else spoken
        arguments = {
            "person_id": row["person_id"],
            "phone_number": number_argument(solver, given),
        }
        yield from call_tool(solver, "modify_contact", arguments)
        return "The contact is changed."

    answers = who.answers
    if missing:
        clause = choices.clause(
            "modify_no_number", f"change the number of {name}", f"update the number of {name}",
            f"give {name} a new number", f"edit the phone number of {name}",
        )  # fmt: skip
        answers = [*answers, {"keywords": ["number"], "reply": spoken}]
    else:
        clause = choices.clause(
            "modify", f"change the number of {name} to {spoken}",
            f"set {spoken} as number of {name}", f"update {name} to {spoken}",
            f"give {name} the new number {spoken}",
        )  # fmt: skip
    return Request(
        clause, solution, CONTACT_TOOLS, "modify_contact", contacts=who.rows, answers=answers,
        invented_tools=("modify_contact", "add_contact"),
    )  # fmt: skip


def remove_contact(choices: Choices, ambiguous: bool = False) -> Request:
    who = person(choices, ambiguous)

    def solution(solver: Solver) -> Solution:
        solver.need("remove_contact")
        row = yield from find_contact(solver, who, invent=False)
        yield from call_tool(solver, "remove_contact", {"person_id": row["person_id"]})
        return "The contact is removed."

    name = who.phrase
    clause = choices.clause(
        "remove_contact", f"remove {name} from my contacts", f"delete the contact of {name}",
        f"delete {name} from my contacts", f"erase {name} from my phone book",
    )  # fmt: skip
    return Request(
        clause, solution, CONTACT_TOOLS, "remove_contact",
        contacts=who.rows, answers=who.answers,
    )  # fmt: skip
