"""Requests about the contact book."""

from __future__ import annotations

from trace_bench.envs.toolsandbox.scenarios.capabilities import DECLINE
from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.requests.people import (
    ask_number,
    find_contact,
    number_argument,
    person,
    spoken_number,
)
from trace_bench.envs.toolsandbox.scenarios.requests.request import Request
from trace_bench.envs.toolsandbox.scenarios.solver import Solution, Solver, call_tool

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
