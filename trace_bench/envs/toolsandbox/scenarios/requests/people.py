"""People in requests: who is meant, how the user calls them, and how their number is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.capabilities import CONVERT, DECLINE, DISAMBIGUATE
from trace_bench.envs.toolsandbox.scenarios.pools import RELATIONSHIPS
from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.solver import (
    DECLINED,
    Fault,
    GiveUp,
    Redraw,
    Say,
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
