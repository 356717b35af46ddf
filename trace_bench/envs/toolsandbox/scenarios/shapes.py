"""The 129 scenario shapes: which requests come together in which state of the phone.

Their mix of categories is the official benchmark's: 19 single tool call, 54 multiple tool calls, 28
multiple user turns, 28 insufficient information. Within a category they stand by the capability
that they need, those that need several last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from trace_bench.envs.toolsandbox.scenarios import lookups, people, reminders
from trace_bench.envs.toolsandbox.scenarios.solver import Choices, Kind, Turns

SINGLE, MULTIPLE = "single_tool_call", "multiple_tool_calls"
TURNS, INSUFFICIENT = "multiple_user_turns", "insufficient_information"


@dataclass(frozen=True)
class Shape:
    """kinds: the requests, in order; all in the user's first message, but in the category TURNS
    each in a message of its own. withheld: tools that the agent does not get. settings: states of
    the phone at the start, over those that the requests ask for."""

    name: str
    category: str
    kinds: tuple[Kind, ...]
    withheld: tuple[str, ...] = ()
    settings: tuple[tuple[str, bool], ...] = ()

    def draw(self, choices: Choices) -> Turns:
        """The requests of every turn of the user, drawn at random."""
        requests = [kind(choices) for kind in self.kinds]
        return [[request] for request in requests] if self.category == TURNS else [requests]


@lru_cache(maxsize=1)
def shapes() -> tuple[Shape, ...]:
    """All shapes, in a fixed order."""
    return (*_single(), *_multiple(), *_turns(), *_insufficient())


def _of(category: str, *withheld: str) -> Callable[..., Shape]:
    """Makes shapes of a category from a name, requests, and states of the phone."""

    def shape(name: str, *kinds: Kind, **settings: bool) -> Shape:
        return Shape(name, category, kinds, withheld, tuple(settings.items()))

    return shape


def _set(which: str, on: bool | None = None, blocked: bool = False) -> Kind:
    return partial(lookups.set_status, which=which, on=on, blocked=blocked)


def _get(which: str, on: bool | None = None) -> Kind:
    return partial(lookups.get_status, which=which, on=on)


def _if(kind: Kind, which: str, holds: bool | None = None) -> Kind:
    return partial(lookups.conditional, kind=kind, which=which, holds=holds)


def _single() -> list[Shape]:
    one = _of(SINGLE)
    return [
        *(
            one(f"set_{which}_{state}", _set(which, state == "on"))
            for which in ("wifi", "cellular", "location")
            for state in ("on", "off")
        ),
        *(one(f"get_{which}", _get(which)) for which in lookups.SWITCHES),
        one("send_number", people.send_number),
        one("send_number_raw", partial(people.send_number, raw=True)),
        one("add_contact", people.add_contact),
        one("add_contact_raw", partial(people.add_contact, raw=True)),
        one("phone_of", people.phone_of),
        one("units", lookups.units),
        one("stock", lookups.stock),
        one("currency", lookups.currency),
        one("weather", lookups.weather),
    ]


def _multiple() -> list[Shape]:
    one, stock_off = _of(MULTIPLE), partial(lookups.stock, off=True)
    raw_send = partial(people.send_number, raw=True)
    raw_add = partial(people.add_contact, raw=True)
    plain = (
        people.modify_contact, people.remove_contact, people.last_message,
        reminders.remind_at, reminders.reminder_when, reminders.edit_reminder,
        reminders.remove_reminder, lookups.holiday, lookups.where_am_i, lookups.place_near,
        lookups.time_until, lookups.duration,
    )  # fmt: skip
    return [
        one("send_name", people.send_name),
        one("send_relation", partial(people.send_name, by="relationship")),
        *(one(kind.__name__, kind) for kind in plain),
        # recovers_from_errors
        one("send_number_cellular_off", people.send_number, cellular=False),
        one("send_name_cellular_off", people.send_name, cellular=False),
        one("send_number_low_battery", people.send_number, cellular=False, low_battery_mode=True),
        one("stock_wifi_off", stock_off),
        one("currency_wifi_off", partial(lookups.currency, off=True)),
        one("weather_wifi_off", partial(lookups.weather, off="wifi")),
        one("weather_location_off", partial(lookups.weather, off="location")),
        one("where_location_off", partial(lookups.where_am_i, off="location")),
        one("holiday_wifi_off", partial(lookups.holiday, off=True)),
        one("place_wifi_off", partial(lookups.place_near, off="wifi")),
        one("set_wifi_low_battery", _set("wifi", True, blocked=True)),
        one("set_location_low_battery", _set("location", True, blocked=True)),
        # converts_values
        one("remind_in", reminders.remind_in),
        one("postpone", reminders.postpone),
        one("weather_fahrenheit", partial(lookups.weather, fahrenheit=True)),
        one("modify_contact_raw", partial(people.modify_contact, raw=True)),
        one("stock_in_currency", partial(lookups.stock, currency=True)),
        # checks_preconditions
        one("if_send_number", _if(people.send_number, "wifi")),
        one("if_add_contact", _if(people.add_contact, "location")),
        one("if_remove_contact", _if(people.remove_contact, "wifi")),
        one("if_remind_at", _if(reminders.remind_at, "location")),
        one("if_send_name", _if(people.send_name, "location")),
        # completes_all_parts
        one("both_set_send", _set("wifi"), people.send_number),
        one("both_units_duration", lookups.units, lookups.duration),
        one("both_add_send", people.add_contact, people.send_number),
        one("both_remove_reminder_set", reminders.remove_reminder, _set("wifi")),
        one("both_send_name_remind", people.send_name, reminders.remind_at),
        one("both_units_stock", lookups.units, lookups.stock),
        one("both_phone_status", people.phone_of, _get("location")),
        one("three_set_units_status", _set("location"), lookups.units, _get("wifi", True)),
        # several
        one("send_raw_cellular_off", raw_send, cellular=False),
        one("both_set_send_cellular_off", _set("location"), people.send_number, cellular=False),
        one("both_units_stock_off", lookups.units, stock_off),
        one("both_raw_add_units", raw_add, lookups.units),
        one("both_remind_in_units", reminders.remind_in, lookups.units),
        one("if_send_cellular_off", _if(people.send_number, "location"), cellular=False),
        one("if_add_raw", _if(raw_add, "wifi")),
        one("weather_fahrenheit_wifi_off", partial(lookups.weather, fahrenheit=True, off="wifi")),
        one("three_raw_units_stock_off", raw_add, lookups.units, stock_off),
        one("if_both_send_units", _if(people.send_number, "wifi"), lookups.units),
    ]


def _turns() -> list[Shape]:
    one = _of(TURNS)
    return [
        one("then_set_units", _set("wifi", False), lookups.units),
        one("then_send_units", people.send_number, lookups.units),
        one("then_phone_low", people.phone_of, _get("low_battery")),
        one("then_units_units", lookups.units, lookups.units),
        one("then_remove_reminder_stock", reminders.remove_reminder, lookups.stock),
        one("then_add_send", people.add_contact, people.send_number),
        one("then_reminder_duration", reminders.reminder_when, lookups.duration),
        one("then_stock_currency", lookups.stock, lookups.currency),
        # asks_when_information_is_missing
        one("ask_content", partial(people.send_number, missing="content")),
        one("ask_content_name", partial(people.send_name, missing=True)),
        one("ask_number", partial(people.send_number, missing="number")),
        one("ask_contact_number", partial(people.add_contact, missing=True)),
        one("ask_when", partial(reminders.remind_at, missing="when")),
        one("ask_what", partial(reminders.remind_at, missing="what")),
        one("ask_new_number", partial(people.modify_contact, missing=True)),
        one("ask_unit", partial(lookups.units, missing=True)),
        # disambiguates
        one("which_send", partial(people.send_name, ambiguous=True)),
        one("which_phone", partial(people.phone_of, ambiguous=True)),
        one("which_modify", partial(people.modify_contact, ambiguous=True)),
        one("which_remove", partial(people.remove_contact, ambiguous=True)),
        one("which_message", partial(people.last_message, ambiguous=True)),
        # several
        one("ask_content_cellular_off", partial(people.send_name, missing=True), cellular=False),
        one("which_send_cellular_off", partial(people.send_name, ambiguous=True), cellular=False),
        one("ask_contact_number_raw", partial(people.add_contact, raw=True, missing=True)),
        one("ask_when_relative", partial(reminders.remind_in, missing=True)),
        one("which_ask_content", partial(people.send_name, missing=True, ambiguous=True)),
        one("then_units_stock_off", lookups.units, partial(lookups.stock, off=True)),
        one("which_modify_raw", partial(people.modify_contact, raw=True, ambiguous=True)),
    ]


def _insufficient() -> list[Shape]:
    """A tool is withheld without which a request cannot be carried out."""
    no = partial(_of, INSUFFICIENT)
    no_contacts, no_reminders = no("search_contacts"), no("search_reminder")
    no_clock, no_dates = no("get_current_timestamp"), no("datetime_info_to_timestamp")
    no_wifi = no("set_wifi_status")
    no_cellular = no("set_cellular_service_status")
    return [
        # It is the request's main tool, or nothing can stand in for it.
        no_wifi("no_set_wifi", _set("wifi", True)),
        no_cellular("no_set_cellular", _set("cellular", False)),
        no("set_location_service_status")("no_set_location", _set("location", True)),
        no("get_wifi_status")("no_get_wifi", _get("wifi", True)),
        no("unit_conversion")("no_units", lookups.units),
        no("search_stock")("no_stock", lookups.stock),
        no("convert_currency")("no_currency", lookups.currency),
        no("search_weather_around_lat_lon")("no_weather", lookups.weather),
        no("search_location_around_lat_lon")("no_place", lookups.place_near),
        no("search_holiday")("no_holiday", lookups.holiday),
        no_cellular("stuck_cellular", people.send_number, cellular=False),
        no_wifi("stuck_wifi", partial(lookups.stock, off=True)),
        # It finds an argument of the main tool, so that one could be invented.
        no_contacts("no_contacts_send", people.send_name),
        no_contacts("no_contacts_modify", people.modify_contact),
        no_clock("no_clock_until", lookups.time_until),
        no_contacts("no_contacts_relation", partial(people.send_name, by="relationship")),
        no_dates("no_date_until", lookups.time_until),
        no_contacts("no_contacts_message", people.last_message),
        no_clock("no_clock_remind", reminders.remind_in),
        no_dates("no_date_remind", reminders.remind_at),
        no_reminders("no_reminders_edit", reminders.edit_reminder),
        no_reminders("no_reminders_when", reminders.reminder_when),
        no_reminders("no_reminders_postpone", reminders.postpone),
        no_contacts("no_contacts_modify_raw", partial(people.modify_contact, raw=True)),
        # Other capabilities are needed, too.
        no_contacts("set_then_no_contacts", _set("wifi", True), people.send_name),
        no_reminders("units_then_no_reminders", lookups.units, reminders.edit_reminder),
        no_contacts("if_no_contacts", _if(people.send_name, "location", True)),
        no_dates("if_no_date", _if(reminders.remind_at, "wifi", True)),
    ]
