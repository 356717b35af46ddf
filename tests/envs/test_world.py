"""Every tool: what it gives, and each thing it refuses."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from phone_world import NOW, START, start

from trace_bench.envs.toolsandbox.databases import ToolFault
from trace_bench.envs.toolsandbox.env import Phone

NEW_YORK = {"latitude": 40.7128, "longitude": -74.006}
MID_OCEAN = {"latitude": 0, "longitude": -30}
DATE = {"year": 2023, "month": 11, "day": 14, "hour": 22, "minute": 13, "second": 20}
APART = {"timestamp_0": NOW, "timestamp_1": NOW + 90000}
CLOCK = {"hour": 25, "minute": 1, "second": 1}

# tool, arguments, result
RESULTS: list[tuple[str, dict[str, Any], Any]] = [
    ("get_wifi_status", {}, True),
    ("get_cellular_service_status", {}, True),
    ("get_location_service_status", {}, True),
    ("get_low_battery_mode_status", {}, False),
    ("get_current_location", {}, {"latitude": 37.3349, "longitude": -122.009}),
    ("search_contacts", {"name": "Zoltan"}, []),
    ("search_messages", {"message_id": "nothing"}, []),
    ("get_current_timestamp", {}, NOW),
    ("timestamp_to_datetime_info", {"timestamp": NOW}, {**DATE, "isoweekday": 2}),
    ("datetime_info_to_timestamp", DATE, NOW),
    ("shift_timestamp", {"timestamp": NOW, "weeks": 1, "days": -7, "seconds": 5}, NOW + 5),
    ("timestamp_diff", APART, {"days": 1, "seconds": 3600}),
    ("seconds_to_hours_minutes_seconds", {"seconds": 90061}, CLOCK),
    ("unit_conversion", {"amount": 10, "from_unit": "mile", "to_unit": "kilometer"}, 16.09),
    ("unit_conversion", {"amount": 212, "from_unit": "Fahrenheit", "to_unit": "celsius"}, 100),
    ("unit_conversion", {"amount": 1, "from_unit": "gram", "to_unit": "kilograms"}, 0.001),
    ("unit_conversion", {"amount": 36, "from_unit": "km/hour", "to_unit": "meter/second"}, 10),
    ("search_holiday", {"holiday_name": "Christmas", "year": 2024}, 1735084800),
    ("search_holiday", {"holiday_name": "independence day", "year": 2026}, 1783123200),
    ("search_holiday", {"holiday_name": "Zzz"}, None),
    ("search_stock", {"query": "aapl"}, {"name": "Apple", "symbol": "AAPL", "price": 169.32}),
    ("search_stock", {"query": "no such company at all"}, None),
    ("convert_currency", {"amount": 10, "from_currency_code": "USD", "to_currency_code": "eur"}, 9),
    ("search_lat_lon", MID_OCEAN, None),
    ("search_location_around_lat_lon", {"location": "pharmacy", **MID_OCEAN}, []),
]


@pytest.mark.parametrize(("name", "arguments", "result"), RESULTS)
def test_result(world: Phone, name: str, arguments: dict[str, Any], result: Any) -> None:
    assert world.call(name, arguments) == result
    assert len(world.snapshots) == 1  # none of these changes anything


@pytest.mark.parametrize("service", ["wifi", "cellular_service", "location_service"])
def test_a_service_is_switched_off_and_on(world: Phone, service: str) -> None:
    for on in (False, True):
        assert world.call(f"set_{service}_status", {"on": on}) is None
        assert world.call(f"get_{service}_status", {}) is on
        with pytest.raises(ToolFault, match=f"ValueError: .* is already {'on' if on else 'off'}"):
            world.call(f"set_{service}_status", {"on": on})
    assert len(world.snapshots) == 3


@pytest.mark.parametrize("service", ["wifi", "cellular_service", "location_service"])
def test_low_battery_mode_keeps_a_service_off_until_switched_on(world: Phone, service: str) -> None:
    world.call("set_low_battery_mode_status", {"on": True})
    assert world.call(f"get_{service}_status", {}) is False
    with pytest.raises(ToolFault, match="PermissionError: Low battery mode is on"):
        world.call(f"set_{service}_status", {"on": True})
    world.call("set_low_battery_mode_status", {"on": False})
    assert world.call(f"get_{service}_status", {}) is False  # stays off until switched on
    assert world.call(f"set_{service}_status", {"on": True}) is None


NEARBY: list[tuple[str, dict[str, Any]]] = [
    ("search_location_around_lat_lon", {"location": "pharmacy"}),
    ("search_weather_around_lat_lon", {}),
]
ONLINE: list[tuple[str, dict[str, Any]]] = [
    *NEARBY,
    ("search_lat_lon", NEW_YORK),
    ("search_stock", {"query": "Apple"}),
    ("convert_currency", {"amount": 1, "from_currency_code": "USD", "to_currency_code": "EUR"}),
    ("search_holiday", {"holiday_name": "Christmas"}),
]


@pytest.mark.parametrize(("name", "arguments"), ONLINE)
def test_online_tools_need_wifi(name: str, arguments: dict[str, Any]) -> None:
    world = Phone(start(wifi=False, location_service=False), NOW, 1)
    with pytest.raises(ToolFault, match="ConnectionError: Wifi is off"):
        world.call(name, arguments)


@pytest.mark.parametrize(("name", "arguments"), [("get_current_location", {}), *NEARBY])
def test_here_needs_location_service(name: str, arguments: dict[str, Any]) -> None:
    world = Phone(start(location_service=False), NOW, 1)
    with pytest.raises(ToolFault, match="PermissionError: Location service is off"):
        world.call(name, arguments)
    if name != "get_current_location":
        assert world.call(name, {**arguments, **NEW_YORK})


def test_places_and_weather(world: Phone) -> None:
    found = world.call("search_location_around_lat_lon", {"location": "pharmacy", **NEW_YORK})
    assert [place["name"] for place in found] == ["Green Cross Pharmacy", "City Pharmacy"]
    assert all(place["address"].endswith(", New York") for place in found)
    assert world.call("search_lat_lon", NEW_YORK).endswith(", New York")
    city = world.call("search_location_around_lat_lon", {"location": "Paris"})
    assert city == [{"name": "Paris", "latitude": 48.8566, "longitude": 2.3522}]
    today = world.call("search_weather_around_lat_lon", NEW_YORK)
    assert set(today) == {"condition", "temperature", "unit"}
    week = [world.call("search_weather_around_lat_lon", {**NEW_YORK, "days": d}) for d in range(7)]
    assert week[0] == today
    assert len({day["temperature"] for day in week}) > 3


def test_contacts(world: Phone) -> None:
    arguments = {"name": "Bo Li", "phone_number": "+14155550177", "relationship": None}
    identity = world.call("add_contact", arguments)
    row = {"person_id": identity, **arguments, "is_self": False}
    assert len(identity) == 8
    assert world.call("search_contacts", {"phone_number": "+14155550177"}) == [row]
    assert world.call("modify_contact", {"person_id": identity, "relationship": "boss"}) is None
    changed = {**row, "relationship": "boss"}
    assert world.call("search_contacts", {"relationship": "Boss"}) == [changed]
    assert world.call("remove_contact", {"person_id": identity}) is None
    assert world.call("search_contacts", {"person_id": identity}) == []


def test_names_are_matched_approximately(world: Phone) -> None:
    for name in ("Anna", "berg", "Ana Berg", "anna berg"):
        assert [r["person_id"] for r in world.call("search_contacts", {"name": name})] == ["anna"]
    assert world.call("search_contacts", {"name": "Anna", "is_self": True}) == []


def test_messages(world: Phone) -> None:
    arguments = {"phone_number": "+14155550132", "content": "Dinner at seven"}
    identity = world.call("send_message_with_phone_number", arguments)
    assert world.call("search_messages", {"message_id": identity}) == [
        {
            "message_id": identity,
            "sender_person_id": "me",
            "sender_phone_number": "+14155550100",
            "recipient_person_id": "anna",
            "recipient_phone_number": "+14155550132",
            "content": "Dinner at seven",
            "creation_timestamp": NOW,
        }
    ]
    assert world.call("search_messages", {"content": "umbrella"})[0]["message_id"] == "m1"
    older = world.call("search_messages", {"creation_timestamp_upperbound": NOW - 1})
    newer = world.call("search_messages", {"creation_timestamp_lowerbound": NOW})
    assert [r["message_id"] for r in older + newer] == ["m1", identity]
    stranger = {"phone_number": "+14155550199", "content": "Hi"}
    message = world.call("send_message_with_phone_number", stranger)
    assert world.call("search_messages", {"message_id": message})[0]["recipient_person_id"] is None


def test_reminders(world: Phone) -> None:
    place = {"latitude": 40.7, "longitude": -74.0}
    arguments = {"content": "Buy rye bread", "reminder_timestamp": NOW + 60, **place}
    identity = world.call("add_reminder", arguments)
    row = {"reminder_id": identity, "creation_timestamp": NOW, **arguments}
    assert world.call("search_reminder", {"content": "bread"})[0] == row
    assert world.call("search_reminder", {"latitude": 40.7}) == [row]
    assert world.call("search_reminder", {"reminder_timestamp_upperbound": NOW + 60}) == [row]
    world.call("modify_reminder", {"reminder_id": "r1", "reminder_timestamp": NOW + 5})
    changed = world.call("search_reminder", {"reminder_id": "r1"})[0]
    assert (changed["reminder_timestamp"], changed["creation_timestamp"]) == (NOW + 5, NOW)
    world.call("modify_reminder", {"reminder_id": "r1", "reminder_timestamp": NOW + 5})
    assert world.rows("REMINDER").count(changed) == 1, "in Apple's database it is there twice"
    assert world.call("remove_reminder", {"reminder_id": "r1"}) is None
    assert [r["reminder_id"] for r in world.rows("REMINDER")] == [identity]


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("no_such_tool", {}, "NameError: Unknown tool"),
    ("end_conversation", {}, "NameError: Unknown tool"),  # the user's tool, not the agent's
    ("set_wifi_status", {}, "TypeError: Missing argument on"),
    ("set_wifi_status", {"on": 1}, "TypeError: Argument on must be a boolean"),
    ("set_wifi_status", {"on": True, "x": 1}, "TypeError: Unknown argument x"),
    ("search_contacts", {}, "ValueError: Give at least one argument"),
    ("search_contacts", {"name": 5}, "TypeError: Argument name must be a string"),
    ("modify_contact", {"person_id": "anna"}, "ValueError: Give at least one argument"),
    ("modify_contact", {"person_id": "?", "name": "A"}, "NoDataError: No such contact"),
    ("modify_contact", {"person_id": "anna", "is_self": True},
     "DuplicateError: A self contact already exists"),
    ("remove_reminder", {"reminder_id": "?"}, "NoDataError: No such reminder"),
    ("add_reminder", {"content": "A", "reminder_timestamp": NOW, "latitude": 91},
     "ValueError: Argument latitude is out of range"),
    ("add_reminder", {"content": "A", "reminder_timestamp": float("nan")},
     "ValueError: Argument reminder_timestamp is out of range"),
    ("add_reminder", {"content": "A", "reminder_timestamp": 10**400},
     "ValueError: Argument reminder_timestamp is out of range"),
    ("add_reminder", {"content": "A", "reminder_timestamp": True},
     "TypeError: Argument reminder_timestamp must be a number"),
    ("datetime_info_to_timestamp", {**DATE, "month": 2, "day": 30}, "ValueError: Not a valid date"),
    ("datetime_info_to_timestamp", {**DATE, "month": 1.5},
     "TypeError: Argument month must be an integer"),
    ("shift_timestamp", {"timestamp": NOW, "weeks": 9999}, "ValueError: Result is out of range"),
    ("unit_conversion", {"amount": 1, "from_unit": "9**9**9", "to_unit": "m"},
     "UndefinedUnitError: Unknown unit"),
    ("unit_conversion", {"amount": 1, "from_unit": "kg", "to_unit": "m"},
     "ValueError: Units do not match"),
    ("convert_currency", {"amount": 1, "from_currency_code": "USD", "to_currency_code": "XXX"},
     "ValueError: Unknown currency code"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "error"), FAULTS)
def test_fault(world: Phone, name: str, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ToolFault) as caught:
        world.call(name, arguments)
    assert str(caught.value) == error
    assert len(world.snapshots) == 1  # a refused call changes nothing


@pytest.mark.parametrize("number", ["4155550132", "+1415555", ""])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("add_contact", {"name": "A", "phone_number": None}),
        ("modify_contact", {"person_id": "anna", "phone_number": None}),
        ("search_contacts", {"phone_number": None}),
        ("send_message_with_phone_number", {"content": "A", "phone_number": None}),
        ("search_messages", {"sender_phone_number": None}),
    ],
)
def test_numbers_must_be_e164(world: Phone, number: str, name: str, given: dict[str, Any]) -> None:
    with pytest.raises(ToolFault) as caught:
        world.call(name, {k: number if v is None else v for k, v in given.items()})
    assert caught.value.kind == "InvalidPhoneNumberError"


def test_sending_needs_cellular_service_and_a_self_contact() -> None:
    arguments = {"phone_number": "+14155550132", "content": "Hi"}
    with pytest.raises(ToolFault, match="ConnectionError: Cellular service is off"):
        Phone(start(cellular=False), NOW, 1).call("send_message_with_phone_number", arguments)
    with pytest.raises(ToolFault, match="ValueError: The user has no self contact"):
        Phone({}, NOW, 1).call("send_message_with_phone_number", arguments)


def test_every_change_makes_a_snapshot_that_later_changes_leave_alone(world: Phone) -> None:
    kept = [json.dumps(world.snapshots[0])]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("set_wifi_status", {"on": False}),
        ("modify_contact", {"person_id": "anna", "name": "Anna Lund"}),
        ("remove_reminder", {"reminder_id": "r1"}),
        ("add_contact", {"name": "Bo", "phone_number": "+14155550177"}),
    ]
    for name, arguments in calls:
        world.call(name, arguments)
        assert [json.dumps(snapshot) for snapshot in world.snapshots[:-1]] == kept
        kept.append(json.dumps(world.state))
    assert len(set(kept)) == 5
    # What did not change is shared, not copied.
    assert world.snapshots[1]["CONTACT"] is world.snapshots[0]["CONTACT"]


def test_start_is_not_changed_and_ids_depend_on_the_seed_only() -> None:
    given = copy.deepcopy(START)
    arguments = {"name": "Bo", "phone_number": "+14155550177"}
    ids = [Phone(given, NOW, seed).call("add_contact", arguments) for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]
    assert given == START
