"""The 129 scenario shapes: which requests come together in which state, by category.

The mix of the categories is the official one (19 single tool call, 54 multiple tool calls, 28
multiple user turns, 28 insufficient information). A shape draws the requests of every user turn
and names the tools that are withheld.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trace_bench.envs.toolsandbox.scenarios import kinds as k
from trace_bench.envs.toolsandbox.scenarios import kinds_more as m
from trace_bench.envs.toolsandbox.scenarios.kinds import Draw
from trace_bench.envs.toolsandbox.scenarios.program import Part

SINGLE, MULTIPLE, TURNS, INSUFFICIENT = (
    "single_tool_call",
    "multiple_tool_calls",
    "multiple_user_turns",
    "insufficient_information",
)
Turns = list[list[Part]]


@dataclass(frozen=True)
class Shape:
    name: str
    category: str
    draw: Callable[[Draw], Turns]
    withheld: tuple[str, ...] = ()
    settings: tuple[tuple[str, bool], ...] = ()


def _cellular_off(**more: bool) -> tuple[tuple[str, bool], ...]:
    return (("cellular", False), *more.items())


def _single() -> list[Shape]:
    def one(name: str, draw: Callable[[Draw], Part]) -> Shape:
        return Shape(name, SINGLE, lambda d: [[draw(d)]])

    out = []
    for which in ("wifi", "cellular", "location"):
        for on in (True, False):
            name = f"set_{which}_{'on' if on else 'off'}"
            out.append(one(name, lambda d, w=which, o=on: k.set_status(d, w, o)))  # type: ignore[misc]
    for which in k.SETTINGS:
        name = f"get_{which}"
        out.append(one(name, lambda d, w=which: k.get_status(d, w, bool(d.rng.randrange(2)))))  # type: ignore[misc]
    return [
        *out,
        one("send_number", k.send_number),
        one("send_number_raw", lambda d: k.send_number(d, raw=True)),
        one("add_contact", k.add_contact),
        one("add_contact_raw", lambda d: k.add_contact(d, raw=True)),
        one("phone_of", k.phone_of),
        one("units", m.units),
        one("stock", m.stock),
        one("currency", m.currency),
        one("weather", m.weather),
    ]


def _multiple() -> list[Shape]:
    def one(name: str, *draws: Callable[[Draw], Part], **settings: bool) -> Shape:
        pairs = tuple(settings.items())
        return Shape(name, MULTIPLE, lambda d: [[draw(d) for draw in draws]], (), pairs)

    def when(draw: Callable[[Draw], Part], which: str) -> Callable[[Draw], Part]:
        return lambda d: k.conditional(d, draw(d), which, bool(d.rng.randrange(2)))

    def raw(d: Draw) -> Part:
        return k.send_number(d, raw=True)

    def raw_add(d: Draw) -> Part:
        return k.add_contact(d, raw=True)

    def get_wifi(d: Draw) -> Part:
        return k.get_status(d, "wifi", True)

    def get_location(d: Draw) -> Part:
        return k.get_status(d, "location", bool(d.rng.randrange(2)))

    def set_location(d: Draw) -> Part:
        return k.set_status(d, "location", bool(d.rng.randrange(2)))

    def set_wifi(d: Draw) -> Part:
        return k.set_status(d, "wifi", bool(d.rng.randrange(2)))

    def stock_off(d: Draw) -> Part:
        return m.stock(d, off=True)

    def weather_f(d: Draw) -> Part:
        return m.weather(d, fahrenheit=True)

    plain = [
        one("send_name", k.send_name),
        one("send_relation", lambda d: k.send_name(d, by="relationship")),
        one("modify_contact", k.modify_contact),
        one("remove_contact", k.remove_contact),
        one("last_message", k.last_message),
        one("remind_at", m.remind_at),
        one("reminder_when", m.reminder_when),
        one("edit_reminder", m.edit_reminder),
        one("remove_reminder", m.remove_reminder),
        one("holiday", m.holiday),
        one("where_am_i", m.where_am_i),
        one("place_near", m.place_near),
        one("time_until", m.time_until),
        one("duration", m.duration),
    ]
    recover = [
        one("send_number_cellular_off", k.send_number, cellular=False),
        one("send_name_cellular_off", k.send_name, cellular=False),
        one("send_number_low_battery", k.send_number, cellular=False, low_battery_mode=True),
        one("stock_wifi_off", stock_off),
        one("currency_wifi_off", lambda d: m.currency(d, off=True)),
        one("weather_wifi_off", lambda d: m.weather(d, off="wifi")),
        one("weather_location_off", lambda d: m.weather(d, off="location")),
        one("where_location_off", lambda d: m.where_am_i(d, off="location")),
        one("holiday_wifi_off", lambda d: m.holiday(d, off=True)),
        one("place_wifi_off", lambda d: m.place_near(d, off="wifi")),
        one("set_wifi_low_battery", lambda d: k.set_status(d, "wifi", True, blocked=True)),
        one("set_location_low_battery", lambda d: k.set_status(d, "location", True, blocked=True)),
    ]
    convert = [
        one("remind_in", m.remind_in),
        one("postpone", m.postpone),
        one("weather_fahrenheit", weather_f),
        one("modify_contact_raw", lambda d: k.modify_contact(d, raw=True)),
        one("stock_in_currency", lambda d: m.stock(d, currency=True)),
    ]
    check = [
        one("if_send_number", when(k.send_number, "wifi")),
        one("if_add_contact", when(k.add_contact, "location")),
        one("if_remove_contact", when(k.remove_contact, "wifi")),
        one("if_remind_at", when(m.remind_at, "location")),
        one("if_send_name", when(k.send_name, "location")),
    ]
    complete = [
        one("both_set_send", set_wifi, k.send_number),
        one("both_units_duration", m.units, m.duration),
        one("both_add_send", k.add_contact, k.send_number),
        one("both_remove_reminder_set", m.remove_reminder, set_wifi),
        one("both_send_name_remind", k.send_name, m.remind_at),
        one("both_units_stock", m.units, m.stock),
        one("both_phone_status", k.phone_of, get_location),
        one("three_set_units_status", set_location, m.units, get_wifi),
    ]
    several = [
        one("send_raw_cellular_off", raw, cellular=False),
        one("both_set_send_cellular_off", set_location, k.send_number, cellular=False),
        one("both_units_stock_off", m.units, stock_off),
        one("both_raw_add_units", raw_add, m.units),
        one("both_remind_in_units", m.remind_in, m.units),
        one("if_send_cellular_off", when(k.send_number, "location"), cellular=False),
        one("if_add_raw", when(raw_add, "wifi")),
        one("weather_fahrenheit_wifi_off", lambda d: m.weather(d, fahrenheit=True, off="wifi")),
        one("three_raw_units_stock_off", raw_add, m.units, stock_off),
        one("if_both_send_units", when(k.send_number, "wifi"), m.units),
    ]
    return plain + recover + convert + check + complete + several


def _turns() -> list[Shape]:
    def follow(name: str, *draws: Callable[[Draw], Part], **settings: bool) -> Shape:
        pairs = tuple(settings.items())
        return Shape(name, TURNS, lambda d: [[draw(d)] for draw in draws], (), pairs)

    def get_low(d: Draw) -> Part:
        return k.get_status(d, "low_battery", bool(d.rng.randrange(2)))

    def amb(draw: Callable[..., Part], **more: bool) -> Callable[[Draw], Part]:
        return lambda d: draw(d, ambiguous=True, **more)

    plain = [
        follow("then_set_units", lambda d: k.set_status(d, "wifi", False), m.units),
        follow("then_send_units", k.send_number, m.units),
        follow("then_phone_low", k.phone_of, get_low),
        follow("then_units_units", m.units, m.units),
        follow("then_remove_reminder_stock", m.remove_reminder, m.stock),
        follow("then_add_send", k.add_contact, k.send_number),
        follow("then_reminder_duration", m.reminder_when, m.duration),
        follow("then_stock_currency", m.stock, m.currency),
    ]
    ask = [
        follow("ask_content", lambda d: k.send_number(d, missing="content")),
        follow("ask_content_name", lambda d: k.send_name(d, missing=True)),
        follow("ask_number", lambda d: k.send_number(d, missing="number")),
        follow("ask_contact_number", lambda d: k.add_contact(d, missing=True)),
        follow("ask_when", lambda d: m.remind_at(d, missing="when")),
        follow("ask_what", lambda d: m.remind_at(d, missing="what")),
        follow("ask_new_number", lambda d: k.modify_contact(d, missing=True)),
        follow("ask_unit", lambda d: m.units(d, missing=True)),
    ]
    which = [
        follow("which_send", amb(k.send_name)),
        follow("which_phone", amb(k.phone_of)),
        follow("which_modify", amb(k.modify_contact)),
        follow("which_remove", amb(k.remove_contact)),
        follow("which_message", amb(k.last_message)),
    ]
    several = [
        follow("ask_content_cellular_off", lambda d: k.send_name(d, missing=True), cellular=False),
        follow("which_send_cellular_off", amb(k.send_name), cellular=False),
        follow("ask_contact_number_raw", lambda d: k.add_contact(d, raw=True, missing=True)),
        follow("ask_when_relative", lambda d: m.remind_in(d, missing=True)),
        follow("which_ask_content", amb(k.send_name, missing=True)),
        follow("then_units_stock_off", m.units, lambda d: m.stock(d, off=True)),
        follow("which_modify_raw", amb(k.modify_contact, raw=True)),
    ]
    return plain + ask + which + several


def _insufficient() -> list[Shape]:
    def without(name: str, tools: str, *draws: Callable[[Draw], Part], **settings: bool) -> Shape:
        pairs = tuple(settings.items())
        shape_tools = tuple(tools.split())
        return Shape(
            name, INSUFFICIENT, lambda d: [[draw(d) for draw in draws]], shape_tools, pairs
        )

    contacts, reminders, clock = "search_contacts", "search_reminder", "get_current_timestamp"

    def set_wifi(d: Draw) -> Part:
        return k.set_status(d, "wifi", True)

    def get_wifi(d: Draw) -> Part:
        return k.get_status(d, "wifi", True)

    plain = [
        without("no_set_wifi", "set_wifi_status", set_wifi),
        without("no_set_cellular", "set_cellular_service_status",
                lambda d: k.set_status(d, "cellular", False)),
        without("no_set_location", "set_location_service_status",
                lambda d: k.set_status(d, "location", True)),
        without("no_get_wifi", "get_wifi_status", get_wifi),
        without("no_units", "unit_conversion", m.units),
        without("no_stock", "search_stock", m.stock),
        without("no_currency", "convert_currency", m.currency),
        without("no_weather", "search_weather_around_lat_lon", m.weather),
        without("no_place", "search_location_around_lat_lon", m.place_near),
        without("no_holiday", "search_holiday", m.holiday),
        without("stuck_cellular", "set_cellular_service_status", k.send_number, cellular=False),
        without("stuck_wifi", "set_wifi_status", lambda d: m.stock(d, off=True)),
    ]  # fmt: skip
    rare = [
        without("no_contacts_send", contacts, k.send_name),
        without("no_contacts_modify", contacts, k.modify_contact),
        without("no_clock_until", clock, m.time_until),
        without("no_contacts_relation", contacts, lambda d: k.send_name(d, by="relationship")),
        without("no_date_until", "datetime_info_to_timestamp", m.time_until),
        without("no_contacts_message", contacts, k.last_message),
        without("no_clock_remind", clock, m.remind_in),
        without("no_date_remind", "datetime_info_to_timestamp", m.remind_at),
        without("no_reminders_edit", reminders, m.edit_reminder),
        without("no_reminders_when", reminders, m.reminder_when),
        without("no_reminders_postpone", reminders, m.postpone),
        without("no_contacts_modify_raw", contacts, lambda d: k.modify_contact(d, raw=True)),
    ]  # fmt: skip
    several = [
        without("set_then_no_contacts", contacts, set_wifi, k.send_name),
        without("units_then_no_reminders", reminders, m.units, m.edit_reminder),
        without("if_no_contacts", contacts,
                lambda d: k.conditional(d, k.send_name(d), "location", True)),
        without("if_no_date", "datetime_info_to_timestamp",
                lambda d: k.conditional(d, m.remind_at(d), "wifi", True)),
    ]  # fmt: skip
    return plain + rare + several


def shapes() -> list[Shape]:
    """All shapes, in a fixed order; 129 of them."""
    return [*_single(), *_multiple(), *_turns(), *_insufficient()]
