"""The kinds of requests: settings, contacts and messages (utilities, reminders and search tools
are in `kinds_more`). Each function draws one request and returns it as a `Part`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.pools import RELATIONSHIPS, Pool
from trace_bench.envs.toolsandbox.scenarios.program import (
    ASK,
    CHECK,
    CONVERT,
    DECLINE,
    DECLINED,
    DISAMBIGUATE,
    Abort,
    Call,
    Fault,
    Mind,
    Part,
    Program,
    Redraw,
    Say,
    act,
)

SETTING_TOOLS = (
    "get_wifi_status",
    "get_cellular_service_status",
    "get_location_service_status",
    "get_low_battery_mode_status",
    "set_wifi_status",
    "set_cellular_service_status",
    "set_location_service_status",
    "set_low_battery_mode_status",
)
SETTERS = SETTING_TOOLS[4:]
SEND_TOOLS = ("search_contacts", "send_message_with_phone_number", *SETTERS)
CONTACT_TOOLS = ("add_contact", "modify_contact", "remove_contact", "search_contacts")
SETTINGS = {
    "wifi": ("wifi", "Wifi"),
    "cellular": ("cellular_service", "Cellular service"),
    "location": ("location_service", "Location service"),
    "low_battery": ("low_battery_mode", "Low battery mode"),
}


@dataclass
class Draw:
    """Where a scenario's random choices come from. `used` keeps first names apart."""

    rng: random.Random
    pool: Pool
    used: set[str] = field(default_factory=set)
    wording: list[str] = field(default_factory=list)

    def pick(self, kind: str, *clauses: str) -> str:
        """One of a kind's clauses; which one is noted in `wording`."""
        index = self.rng.randrange(len(clauses))
        self.wording.append(f"{kind}.{index}")
        return clauses[index]

    def identity(self) -> str:
        """A row's id: eight decimal digits, which a small tokenizer reads in four pieces."""
        return f"{self.rng.randrange(10**8):08d}"

    def contact(self, **fields: Any) -> dict[str, Any]:
        """A contact with a first name that the scenario has not used."""
        for _ in range(100):
            first = fields.pop("first", None) or self.pool.first(self.rng)
            if first not in self.used:
                break
        self.used.add(first)
        return self.row(f"{first} {self.pool.last(self.rng)}", **fields)

    def row(self, name: str, **fields: Any) -> dict[str, Any]:
        return {
            "person_id": self.identity(),
            "name": name,
            "phone_number": self.pool.phone(self.rng),
            "relationship": self.rng.choice((None, *RELATIONSHIPS)),
            "is_self": False,
            **fields,
        }


def raw_phone(number: str) -> str:
    """How people write a number: +14155550132 becomes 415-555-0132."""
    return f"{number[2:5]}-{number[5:8]}-{number[8:]}"


def phone_argument(mind: Mind, said: str) -> str:
    """The number as the tools want it, or as it was said when that is not known to matter."""
    if said.startswith("+"):
        return said
    digits = said.replace("-", "")
    return f"+1{digits}" if mind.can(CONVERT) else digits


def need(mind: Mind, *tools: str) -> None:
    """Give up when a tool that no argument can be found without is missing."""
    if any(tool not in mind.tools for tool in tools):
        raise Abort(DECLINED)


def set_status(d: Draw, which: str, on: bool, blocked: bool = False) -> Part:
    """Switch a setting; `blocked`: low battery mode forbids it first."""
    name, title = SETTINGS[which]
    state = "on" if on else "off"
    words = name.replace("_", " ")

    def program(mind: Mind) -> Program:
        need(mind, f"set_{name}_status")
        yield from act(mind, f"set_{name}_status", {"on": on})
        return f"{title} is {state}."

    column = {"wifi": "wifi", "cellular": "cellular", "location": "location_service"}
    settings: dict[str, Any] = {column.get(which, "low_battery_mode"): not on}
    if blocked:
        settings["low_battery_mode"] = True
    verb = "enable" if on else "disable"
    request = d.pick(
        "set", f"turn {state} {words}", f"switch {state} {words}", f"turn {words} {state}",
        f"{verb} {words}", f"switch {words} {state}",
    )  # fmt: skip
    return Part(
        request, program, SETTING_TOOLS, f"set_{name}_status", settings,
    )  # fmt: skip


def get_status(d: Draw, which: str, on: bool) -> Part:
    name, title = SETTINGS[which]
    words = name.replace("_", " ")

    def program(mind: Mind) -> Program:
        need(mind, f"get_{name}_status")
        value = yield from act(mind, f"get_{name}_status", {})
        return f"{title} is {'on' if value else 'off'}."

    column = {"wifi": "wifi", "cellular": "cellular", "location": "location_service"}
    request = d.pick(
        "status", f"tell me if {words} is on", f"check if {words} is on",
        f"check whether {words} is enabled", f"look up the {words} status",
    )  # fmt: skip
    settings = {column.get(which, "low_battery_mode"): on}
    return Part(request, program, SETTING_TOOLS, f"get_{name}_status", settings)


def find_contact(mind: Mind, key: str, value: str, ambiguous: bool, invent: bool = True) -> Any:
    """The contact that a request means: a row of `search_contacts`.

    Without the tool it declines, or (lacking that) goes on with an invented person.
    """
    if "search_contacts" not in mind.tools:
        if mind.can(DECLINE) or not invent:
            raise Abort(DECLINED)
        return {"person_id": "12345678", "name": value, "phone_number": "+12125550100"}
    rows = yield from act(mind, "search_contacts", {key: value})
    if not rows or isinstance(rows, Fault):
        raise Abort("Sorry, I found nobody.")
    if len(rows) > 1 and not ambiguous:
        raise Redraw
    if len(rows) > 1 and mind.can(DISAMBIGUATE):
        names = [row["name"] for row in rows[:2]]
        question = f"Which one do you mean: {names[0]} or {names[1]}?"
        reply = yield Say(question, milestone=True)
        return next((row for row in rows if row["name"] == reply), rows[0])
    return rows[0]


def person(d: Draw, ambiguous: bool) -> tuple[dict[str, Any], list[dict[str, Any]], list[Any]]:
    """A contact, the rows to add (a namesake first or second when ambiguous), and the answer."""
    target = d.contact()
    rows = [target]
    if ambiguous:
        first, last = target["name"].split(" ")
        twin_last = d.pool.last(d.rng)
        while twin_last == last:
            twin_last = d.pool.last(d.rng)
        rows.insert(d.rng.randrange(2), d.row(f"{first} {twin_last}"))
    answers = [{"keywords": ["which"], "reply": target["name"]}] if ambiguous else []
    return target, rows, answers


def said_name(target: dict[str, Any], ambiguous: bool) -> str:
    return target["name"].split(" ")[0] if ambiguous else target["name"]


def send_number(d: Draw, raw: bool = False, missing: str = "") -> Part:
    """Send a text to a number. `missing`: "content" or "number" is not said until asked."""
    number, content = d.pool.phone(d.rng), d.pool.content(d.rng)
    said = raw_phone(number) if raw else number

    def program(mind: Mind) -> Program:
        need(mind, "send_message_with_phone_number")
        text, to = content, said
        if missing == "content":
            text = (yield Say("What should the message say?")) if mind.can(ASK) else "hello"
        if missing == "number":
            to = (yield Say("What is the phone number?")) if mind.can(ASK) else "+12125550100"
        arguments = {"phone_number": phone_argument(mind, to), "content": text}
        yield from act(mind, "send_message_with_phone_number", arguments)
        return "The message is sent."

    answers: list[dict[str, Any]] = []
    if missing == "content":
        request = d.pick(
            "send_no_content", f"text {said}", f"send a message to {said}", f"message {said}",
            f"send {said} a text",
        )  # fmt: skip
        answers = [{"keywords": ["message say", "content"], "reply": content}]
    elif missing == "number":
        request = d.pick(
            "send_no_number", f'send the message "{content}"', f'text someone "{content}"',
            f'send a text saying "{content}"', f'message my client "{content}"',
        )  # fmt: skip
        answers = [{"keywords": ["number", "who"], "reply": said}]
    else:
        request = d.pick(
            "send", f'text {said} "{content}"', f'send "{content}" to {said}',
            f'message {said} saying "{content}"', f'send a text to {said}: "{content}"',
            f'tell {said} "{content}"',
        )  # fmt: skip
    return Part(
        request, program, SEND_TOOLS, "send_message_with_phone_number", answers=answers,
    )  # fmt: skip


def send_name(d: Draw, ambiguous: bool = False, missing: bool = False, by: str = "name") -> Part:
    """Send a text to a contact, named or told by relationship."""
    target, rows, answers = person(d, ambiguous)
    content = d.pool.content(d.rng)
    key, said = "name", said_name(target, ambiguous)
    if by == "relationship":
        target["relationship"] = d.rng.choice(RELATIONSHIPS)
        key, said = "relationship", target["relationship"]

    def program(mind: Mind) -> Program:
        need(mind, "send_message_with_phone_number")
        row = yield from find_contact(mind, key, said, ambiguous)
        text = content
        if missing:
            text = (yield Say("What should the message say?")) if mind.can(ASK) else "hello"
        arguments = {"phone_number": row["phone_number"], "content": text}
        yield from act(mind, "send_message_with_phone_number", arguments)
        return "The message is sent."

    who = f"my {said}" if by == "relationship" else said
    if missing:
        request = d.pick(
            "send_name_no_content", f"text {who}", f"send a message to {who}", f"message {who}",
            f"send {who} a text",
        )  # fmt: skip
        answers = [*answers, {"keywords": ["message say", "content"], "reply": content}]
    else:
        request = d.pick(
            "send_name", f'text {who} "{content}"', f'send "{content}" to {who}',
            f'message {who} saying "{content}"', f'send a text to {who}: "{content}"',
            f'tell {who} "{content}"',
        )  # fmt: skip
    return Part(
        request, program, SEND_TOOLS, "send_message_with_phone_number", contacts=rows,
        answers=answers,
    )  # fmt: skip


def phone_of(d: Draw, ambiguous: bool = False) -> Part:
    target, rows, answers = person(d, ambiguous)
    said = said_name(target, ambiguous)

    def program(mind: Mind) -> Program:
        row = yield from find_contact(mind, "name", said, ambiguous, False)
        return f"The number is {row['phone_number']}."

    request = d.pick(
        "phone_of", f"find the phone number of {said}", f"look up the number of {said}",
        f"tell me the phone number of {said}", f"give me the number of {said}",
    )  # fmt: skip
    return Part(
        request, program, CONTACT_TOOLS, "search_contacts", contacts=rows, answers=answers,
    )  # fmt: skip


def add_contact(d: Draw, raw: bool = False, missing: bool = False) -> Part:
    row = d.contact()
    number, name = row["phone_number"], row["name"]
    said = raw_phone(number) if raw else number

    def program(mind: Mind) -> Program:
        need(mind, "add_contact")
        given = said
        if missing:
            given = (yield Say("What is the phone number?")) if mind.can(ASK) else "+12125550100"
        arguments = {"name": name, "phone_number": phone_argument(mind, given)}
        yield from act(mind, "add_contact", arguments)
        return "The contact is added."

    if missing:
        request = d.pick(
            "add_no_number", f"add {name} to my contacts", f"save {name} as a contact",
            f"make a contact for {name}", f"put {name} in my contacts",
        )  # fmt: skip
    else:
        request = d.pick(
            "add", f"add {name} with number {said}", f"save {said} as {name}",
            f"add the contact {name}, {said}", f"put {name} in my contacts with {said}",
        )  # fmt: skip
    answers = [{"keywords": ["number"], "reply": said}] if missing else []
    return Part(
        request,
        program,
        CONTACT_TOOLS,
        "add_contact",
        answers=answers,
    )


def modify_contact(
    d: Draw, raw: bool = False, ambiguous: bool = False, missing: bool = False
) -> Part:
    """Give a contact another number."""
    target, rows, answers = person(d, ambiguous)
    name, number = said_name(target, ambiguous), d.pool.phone(d.rng)
    said = raw_phone(number) if raw else number

    def program(mind: Mind) -> Program:
        need(mind, "modify_contact")
        if "search_contacts" not in mind.tools and not mind.can(DECLINE):
            made_up = {"name": name, "phone_number": phone_argument(mind, said)}
            yield from act(mind, "add_contact", made_up)
            return "The contact is changed."
        row = yield from find_contact(mind, "name", name, ambiguous)
        given = said
        if missing:
            given = (yield Say("What is the phone number?")) if mind.can(ASK) else "+12125550100"
        arguments = {"person_id": row["person_id"], "phone_number": phone_argument(mind, given)}
        yield from act(mind, "modify_contact", arguments)
        return "The contact is changed."

    if missing:
        request = d.pick(
            "modify_no_number", f"change the number of {name}", f"update the number of {name}",
            f"give {name} a new number", f"edit the phone number of {name}",
        )  # fmt: skip
        answers = [*answers, {"keywords": ["number"], "reply": said}]
    else:
        request = d.pick(
            "modify", f"change the number of {name} to {said}", f"set {said} as number of {name}",
            f"update {name} to {said}", f"give {name} the new number {said}",
        )  # fmt: skip
    return Part(
        request, program, CONTACT_TOOLS, "modify_contact", contacts=rows, answers=answers,
        wrong=("modify_contact", "add_contact"),
    )  # fmt: skip


def remove_contact(d: Draw, ambiguous: bool = False, by: str = "name") -> Part:
    target, rows, answers = person(d, ambiguous)
    key, said = "name", said_name(target, ambiguous)
    if by == "relationship":
        target["relationship"] = d.rng.choice(RELATIONSHIPS)
        key, said = "relationship", target["relationship"]

    def program(mind: Mind) -> Program:
        need(mind, "remove_contact")
        row = yield from find_contact(mind, key, said, ambiguous, False)
        yield from act(mind, "remove_contact", {"person_id": row["person_id"]})
        return "The contact is removed."

    who = f"my {said}" if by == "relationship" else said
    request = d.pick(
        "remove_contact", f"remove {who} from my contacts", f"delete the contact of {who}",
        f"delete {who} from my contacts", f"erase {who} from my phone book",
    )  # fmt: skip
    return Part(
        request, program, CONTACT_TOOLS, "remove_contact", contacts=rows, answers=answers,
    )  # fmt: skip


def last_message(d: Draw, ambiguous: bool = False) -> Part:
    """Read out what a contact wrote."""
    target, rows, answers = person(d, ambiguous)
    said, content = said_name(target, ambiguous), d.pool.content(d.rng)
    message = {
        "message_id": d.identity(),
        "sender_person_id": target["person_id"],
        "sender_phone_number": target["phone_number"],
        "recipient_person_id": None,
        "recipient_phone_number": None,
        "content": content,
        "creation_timestamp": 0,  # set when the scenario knows its clock
    }

    def program(mind: Mind) -> Program:
        need(mind, "search_messages")
        row = yield from find_contact(mind, "name", said, ambiguous)
        found = yield from act(mind, "search_messages", {"sender_person_id": row["person_id"]})
        if not found:
            raise Abort("Sorry, I found no message.")
        return f'The message says "{found[0]["content"]}".'

    request = d.pick(
        "last_message", f"read me the message from {said}", f"tell me what {said} wrote",
        f"find the message that {said} sent", f"show me the text from {said}",
    )  # fmt: skip
    return Part(
        request, program, ("search_contacts", "search_messages", "send_message_with_phone_number"),
        "search_messages", contacts=rows, messages=[message], answers=answers,
    )  # fmt: skip


def conditional(d: Draw, part: Part, which: str, holds: bool) -> Part:
    """The same request under a condition on a setting that has to be looked up first."""
    name, title = SETTINGS[which]
    column = {"wifi": "wifi", "cellular": "cellular", "location": "location_service"}
    wanted = bool(d.rng.randrange(2))
    actual = wanted if holds else not wanted
    inner: Callable[[Mind], Program] = part.program

    def program(mind: Mind) -> Program:
        if mind.can(CHECK):
            value = yield Call(f"get_{name}_status", {}, milestone=True)
            if value is not wanted:
                raise Abort(f"{title} is {'on' if value else 'off'}, so I did not do it.")
        return (yield from inner(mind))

    words = name.replace("_", " ")
    request = d.pick(
        "if", f"if {words} is {'on' if wanted else 'off'}, {part.request}",
        f"only if {words} is {'on' if wanted else 'off'}, {part.request}",
    )  # fmt: skip
    tools = (*part.tools, *(t for t in SETTING_TOOLS if t not in part.tools))
    return Part(
        request, program, tools, part.main,
        {column.get(which, "low_battery_mode"): actual, **part.settings},
        part.contacts, part.messages, part.reminders, part.answers,
        part.wrong,
    )  # fmt: skip
