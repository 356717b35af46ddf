"""Tools of what the phone holds: device settings, the contact book, text messages and reminders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, Row, ToolFault
from trace_bench.envs.toolsandbox.tools import spec
from trace_bench.envs.toolsandbox.tools.spec import optional, require_any, required, search, tool

# -- device settings -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Switch:
    """A setting that is on or off: `name` in tools' names, `title` in texts, its `column`."""

    name: str
    title: str
    column: str

    @property
    def words(self) -> str:
        """What the user calls it."""
        return self.name.replace("_", " ")

    def report(self, on: bool) -> str:
        return f"{self.title} is {'on' if on else 'off'}"


SWITCHES: Mapping[str, Switch] = {
    "wifi": Switch("wifi", "Wifi", "wifi"),
    "cellular": Switch("cellular_service", "Cellular service", "cellular"),
    "location": Switch("location_service", "Location service", "location_service"),
    "low_battery": Switch("low_battery_mode", "Low battery mode", "low_battery_mode"),
}
_LOW = SWITCHES["low_battery"].column
_DEPENDENT = ("cellular", "wifi", "location_service")


def current_location(world: Databases) -> tuple[float, float]:
    """Latitude and longitude in degrees; PermissionError while location service is off."""
    setting = world.setting
    if not setting["location_service"]:
        raise ToolFault("PermissionError", "Location service is off")
    return setting["latitude"], setting["longitude"]


def require_wifi(world: Databases) -> None:
    """ToolFault ConnectionError while wifi is off. For tools with a web service behind them."""
    if not world.setting["wifi"]:
        raise ToolFault("ConnectionError", "Wifi is off")


def _setter(switch: Switch) -> spec.ToolSpec:
    def set_status(world: Databases, on: bool) -> None:
        setting = world.setting
        if on and switch.column in _DEPENDENT and setting[_LOW]:
            raise ToolFault("PermissionError", "Low battery mode is on")
        if setting[switch.column] == on:
            raise ToolFault("ValueError", switch.report(on).replace(" is ", " is already "))
        changes = {switch.column: on}
        if switch.column == _LOW and on:
            changes.update(dict.fromkeys(_DEPENDENT, False))
        world.update("SETTING", setting["device_id"], changes)

    said = f"Switch {switch.words} on or off."
    if switch.column == _LOW:
        said += " On also switches off cellular, wifi and location."
    on = required("on", "boolean", "true switches it on, false switches it off")
    return tool("setting", said, on, name=f"set_{switch.name}_status")(set_status)


def _getter(switch: Switch) -> spec.ToolSpec:
    def get_status(world: Databases) -> bool:
        return bool(world.setting[switch.column])

    said = f"Whether {switch.words} is on."
    return tool("setting", said, name=f"get_{switch.name}_status")(get_status)


@tool("setting", "Latitude and longitude of the device.")
def get_current_location(world: Databases) -> dict[str, Any]:
    latitude, longitude = current_location(world)
    return {"latitude": latitude, "longitude": longitude}


_contact, _messaging, _reminder = (partial(tool, m) for m in ("contact", "messaging", "reminder"))

# -- contacts -------------------------------------------------------------------------------------

_E164 = "phone number in E.164 form, such as +14155550132"
_PERSON = required("person_id", "string", "id of the contact")
_FIELDS = (
    optional("name", "string", "name of the person"),
    optional("phone_number", "string", _E164, phone=True),
    optional("relationship", "string", "what the person is to the user, such as friend"),
    optional("is_self", "boolean", "whether the contact is the user"),
)


def _own_contact(world: Databases) -> Row | None:
    return next((row for row in world.rows("CONTACT") if row["is_self"]), None)


def _check_self(world: Databases, person_id: str | None, row: Row) -> None:
    contact = _own_contact(world) if row.get("is_self") else None
    if contact is not None and contact["person_id"] != person_id:
        raise ToolFault("DuplicateError", "A self contact already exists")


@_contact(
    "Add a contact; gives its id.",
    required("name", "string", "name of the person"),
    required("phone_number", "string", _E164, phone=True),
    optional("relationship", "string", "what the person is to the user", nullable=True),
    optional("is_self", "boolean", "whether the contact is the user"),
)
def add_contact(world: Databases, **row: Any) -> str:
    _check_self(world, None, row)
    return world.add("CONTACT", row)


@_contact("Change fields of a contact.", _PERSON, *_FIELDS)
def modify_contact(world: Databases, person_id: str, **changes: Any) -> None:
    require_any(changes)
    _check_self(world, person_id, changes)
    world.update("CONTACT", person_id, changes)


@_contact("Delete a contact.", _PERSON)
def remove_contact(world: Databases, person_id: str) -> None:
    world.remove("CONTACT", person_id)


@_contact(
    "Find contacts that match all given fields; name and relationship approximately.",
    optional("person_id", "string", "id of the contact"),
    *_FIELDS,
)
def search_contacts(world: Databases, **criteria: Any) -> list[Row]:
    require_any(criteria)
    return search(world.rows("CONTACT"), criteria, {"name": 90.0, "relationship": 90.0})


# -- messages -------------------------------------------------------------------------------------


@_messaging(
    "Send a text message; gives its id. Needs cellular service.",
    required("phone_number", "string", "recipient's number in E.164 form", phone=True),
    required("content", "string", "text of the message"),
)
def send_message_with_phone_number(world: Databases, phone_number: str, content: str) -> str:
    if not world.setting["cellular"]:
        raise ToolFault("ConnectionError", "Cellular service is off")
    sender = _own_contact(world)
    if sender is None:
        raise ToolFault("ValueError", "The user has no self contact")
    book = world.rows("CONTACT")
    recipient = next((row for row in book if row["phone_number"] == phone_number), None)
    message = {
        "sender_person_id": sender["person_id"],
        "sender_phone_number": sender["phone_number"],
        "recipient_person_id": recipient["person_id"] if recipient else None,
        "recipient_phone_number": phone_number,
        "content": content,
        "creation_timestamp": world.now,
    }
    return world.add("MESSAGING", message)


@_messaging(
    "Find messages that match all given fields; content approximately.",
    optional("message_id", "string", "id of the message"),
    optional("sender_person_id", "string", "contact id of the sender"),
    optional("sender_phone_number", "string", "number of the sender in E.164 form", phone=True),
    optional("recipient_person_id", "string", "contact id of the recipient"),
    optional(
        "recipient_phone_number", "string", "number of the recipient in E.164 form", phone=True
    ),
    optional("content", "string", "text to look for"),
    optional("creation_timestamp_lowerbound", "number", "sent at or after, unix time", spec.TIMES),
    optional("creation_timestamp_upperbound", "number", "sent at or before, unix time", spec.TIMES),
)
def search_messages(world: Databases, **criteria: Any) -> list[Row]:
    require_any(criteria)
    return search(world.rows("MESSAGING"), criteria, {"content": 50.0})


# -- reminders ------------------------------------------------------------------------------------

_ID = required("reminder_id", "string", "id of the reminder")
_WHAT = "what to be reminded of"
_PLACE = (
    optional("latitude", "number", "latitude of its place", spec.LATITUDES, nullable=True),
    optional("longitude", "number", "longitude of its place", spec.LONGITUDES, nullable=True),
)


@_reminder(
    "Add a reminder; gives its id.",
    required("content", "string", _WHAT),
    required("reminder_timestamp", "number", "when to remind, unix time", spec.TIMES),
    *_PLACE,
)
def add_reminder(world: Databases, **row: Any) -> str:
    return world.add("REMINDER", {**row, "creation_timestamp": world.now})


@_reminder(
    "Change fields of a reminder.",
    _ID,
    optional("content", "string", _WHAT),
    optional("reminder_timestamp", "number", "when to remind, unix time", spec.TIMES),
    *_PLACE,
)
def modify_reminder(world: Databases, reminder_id: str, **changes: Any) -> None:
    require_any(changes)
    world.update("REMINDER", reminder_id, {**changes, "creation_timestamp": world.now})


@_reminder(
    "Find reminders that match all given fields; content approximately.",
    optional("reminder_id", "string", "id of the reminder"),
    optional("content", "string", "text to look for"),
    *(
        optional(f"{column}_{side}bound", "number", f"{text} {word}, unix time", spec.TIMES)
        for column, text in (("creation_timestamp", "created"), ("reminder_timestamp", "due"))
        for side, word in (("lower", "at or after"), ("upper", "at or before"))
    ),
    optional("latitude", "number", "latitude of its place", spec.LATITUDES),
    optional("longitude", "number", "longitude of its place", spec.LONGITUDES),
)
def search_reminder(world: Databases, **criteria: Any) -> list[Row]:
    require_any(criteria)
    return search(world.rows("REMINDER"), criteria, {"content": 50.0})


@_reminder("Delete a reminder.", _ID)
def remove_reminder(world: Databases, reminder_id: str) -> None:
    world.remove("REMINDER", reminder_id)


TOOLS = (
    *map(_setter, SWITCHES.values()), *map(_getter, SWITCHES.values()), get_current_location,
    add_contact, modify_contact, remove_contact, search_contacts, send_message_with_phone_number,
    search_messages, add_reminder, modify_reminder, search_reminder, remove_reminder,
)  # fmt: skip
