"""Tools of the contact book."""

from __future__ import annotations

from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, Row, ToolFault
from trace_bench.envs.toolsandbox.tools.matching import check_phone_number, require_any, search
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec, optional, required, tool

_FUZZY = {"name": 90.0, "relationship": 90.0}


def self_contact(world: Databases) -> Row | None:
    """The user's own entry."""
    return next((row for row in world.rows("CONTACT") if row["is_self"]), None)


def _only_one_self(world: Databases, person_id: str | None) -> None:
    own = self_contact(world)
    if own is not None and own["person_id"] != person_id:
        raise ToolFault("DuplicateError", "A self contact already exists")


def add_contact(
    world: Databases,
    name: str,
    phone_number: str,
    relationship: str | None = None,
    is_self: bool = False,
) -> str:
    check_phone_number(phone_number)
    if is_self:
        _only_one_self(world, None)
    return world.add(
        "CONTACT",
        {
            "name": name,
            "phone_number": phone_number,
            "relationship": relationship,
            "is_self": is_self,
        },
    )


def modify_contact(world: Databases, person_id: str, **changes: Any) -> None:
    require_any(changes)
    if "phone_number" in changes:
        check_phone_number(changes["phone_number"])
    if changes.get("is_self"):
        _only_one_self(world, person_id)
    world.update("CONTACT", person_id, changes)


def remove_contact(world: Databases, person_id: str) -> None:
    world.remove("CONTACT", person_id)


def search_contacts(world: Databases, **criteria: Any) -> list[Row]:
    require_any(criteria)
    if "phone_number" in criteria:
        check_phone_number(criteria["phone_number"])
    return search(world.rows("CONTACT"), criteria, _FUZZY)


def tools() -> tuple[ToolSpec, ...]:
    person = required("person_id", "string", "id of the contact")
    fields = (
        optional("name", "string", "name of the person"),
        optional("phone_number", "string", "phone number in E.164 form, such as +14155550132"),
        optional("relationship", "string", "what the person is to the user, such as friend"),
        optional("is_self", "boolean", "whether the contact is the user"),
    )
    return (
        tool(
            "contact",
            add_contact,
            "Add a contact; gives its id.",
            required("name", "string", "name of the person"),
            required("phone_number", "string", "phone number in E.164 form, such as +14155550132"),
            optional("relationship", "string", "what the person is to the user", nullable=True),
            optional("is_self", "boolean", "whether the contact is the user"),
        ),
        tool("contact", modify_contact, "Change fields of a contact.", person, *fields),
        tool("contact", remove_contact, "Delete a contact.", person),
        tool(
            "contact",
            search_contacts,
            "Find contacts that match all given fields; name and relationship approximately.",
            optional("person_id", "string", "id of the contact"),
            *fields,
        ),
    )
