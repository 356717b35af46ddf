"""The 129 scenario shapes: which requests come together in which state of the phone.

Their mix of categories is the official benchmark's: 19 single tool call, 54 multiple tool calls, 28
multiple user turns, 28 insufficient information. Within a category they stand by the capability
that they need, those that need several last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from trace_bench.envs.toolsandbox.scenarios.requests.contacts import (
    add_contact,
    modify_contact,
    phone_of,
    remove_contact,
)
from trace_bench.envs.toolsandbox.scenarios.requests.lookups import (
    currency,
    duration,
    holiday,
    place_near,
    stock,
    time_until,
    units,
    weather,
    where_am_i,
)
from trace_bench.envs.toolsandbox.scenarios.requests.messages import (
    last_message,
    send_name,
    send_number,
)
from trace_bench.envs.toolsandbox.scenarios.requests.reminders import (
    edit_reminder,
    postpone,
    remind_at,
    remind_in,
    reminder_when,
    remove_reminder,
)
from trace_bench.envs.toolsandbox.scenarios.requests.settings import (
    SWITCHES,
    conditional,
    get_status,
    set_status,
)
from trace_bench.envs.toolsandbox.scenarios.solver import Choices, Kind, Turns

SINGLE, MULTIPLE, TURNS, INSUFFICIENT = (
    "single_tool_call",
    "multiple_tool_calls",
    "multiple_user_turns",
    "insufficient_information",
)


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

    def made(name: str, *kinds: Kind, **settings: bool) -> Shape:
        return Shape(name, category, kinds, withheld, tuple(settings.items()))

    return made


def _set(which: str, on: bool | None = None, blocked: bool = False) -> Kind:
    return partial(set_status, which=which, on=on, blocked=blocked)


def _get(which: str, on: bool | None = None) -> Kind:
    return partial(get_status, which=which, on=on)


def _if(kind: Kind, which: str, holds: bool | None = None) -> Kind:
    return partial(conditional, kind=kind, which=which, holds=holds)


def _single() -> list[Shape]:
    one = _of(SINGLE)
    return [
        *(
            one(f"set_{which}_{state}", _set(which, state == "on"))
            for which in ("wifi", "cellular", "location")
            for state in ("on", "off")
        ),
        *(one(f"get_{which}", _get(which)) for which in SWITCHES),
        one("send_number", send_number),
        one("send_number_raw", partial(send_number, raw=True)),
        one("add_contact", add_contact),
        one("add_contact_raw", partial(add_contact, raw=True)),
        one("phone_of", phone_of),
        one("units", units),
        one("stock", stock),
        one("currency", currency),
        one("weather", weather),
    ]


def _multiple() -> list[Shape]:
    one, stock_off = _of(MULTIPLE), partial(stock, off=True)
    raw_send, raw_add = partial(send_number, raw=True), partial(add_contact, raw=True)
    plain = (
        modify_contact, remove_contact, last_message, remind_at, reminder_when, edit_reminder,
        remove_reminder, holiday, where_am_i, place_near, time_until, duration,
    )  # fmt: skip
    return [
        one("send_name", send_name),
        one("send_relation", partial(send_name, by="relationship")),
        *(one(kind.__name__, kind) for kind in plain),
        # recovers_from_errors
        one("send_number_cellular_off", send_number, cellular=False),
        one("send_name_cellular_off", send_name, cellular=False),
        one("send_number_low_battery", send_number, cellular=False, low_battery_mode=True),
        one("stock_wifi_off", stock_off),
        one("currency_wifi_off", partial(currency, off=True)),
        one("weather_wifi_off", partial(weather, off="wifi")),
        one("weather_location_off", partial(weather, off="location")),
        one("where_location_off", partial(where_am_i, off="location")),
        one("holiday_wifi_off", partial(holiday, off=True)),
        one("place_wifi_off", partial(place_near, off="wifi")),
        one("set_wifi_low_battery", _set("wifi", True, blocked=True)),
        one("set_location_low_battery", _set("location", True, blocked=True)),
        # converts_values
        one("remind_in", remind_in),
        one("postpone", postpone),
        one("weather_fahrenheit", partial(weather, fahrenheit=True)),
        one("modify_contact_raw", partial(modify_contact, raw=True)),
        one("stock_in_currency", partial(stock, currency=True)),
        # checks_preconditions
        one("if_send_number", _if(send_number, "wifi")),
        one("if_add_contact", _if(add_contact, "location")),
        one("if_remove_contact", _if(remove_contact, "wifi")),
        one("if_remind_at", _if(remind_at, "location")),
        one("if_send_name", _if(send_name, "location")),
        # completes_all_parts
        one("both_set_send", _set("wifi"), send_number),
        one("both_units_duration", units, duration),
        one("both_add_send", add_contact, send_number),
        one("both_remove_reminder_set", remove_reminder, _set("wifi")),
        one("both_send_name_remind", send_name, remind_at),
        one("both_units_stock", units, stock),
        one("both_phone_status", phone_of, _get("location")),
        one("three_set_units_status", _set("location"), units, _get("wifi", True)),
        # several
        one("send_raw_cellular_off", raw_send, cellular=False),
        one("both_set_send_cellular_off", _set("location"), send_number, cellular=False),
        one("both_units_stock_off", units, stock_off),
        one("both_raw_add_units", raw_add, units),
        one("both_remind_in_units", remind_in, units),
        one("if_send_cellular_off", _if(send_number, "location"), cellular=False),
        one("if_add_raw", _if(raw_add, "wifi")),
        one("weather_fahrenheit_wifi_off", partial(weather, fahrenheit=True, off="wifi")),
        one("three_raw_units_stock_off", raw_add, units, stock_off),
        one("if_both_send_units", _if(send_number, "wifi"), units),
    ]


def _turns() -> list[Shape]:
    one = _of(TURNS)
    return [
        one("then_set_units", _set("wifi", False), units),
        one("then_send_units", send_number, units),
        one("then_phone_low", phone_of, _get("low_battery")),
        one("then_units_units", units, units),
        one("then_remove_reminder_stock", remove_reminder, stock),
        one("then_add_send", add_contact, send_number),
        one("then_reminder_duration", reminder_when, duration),
        one("then_stock_currency", stock, currency),
        # asks_when_information_is_missing
        one("ask_content", partial(send_number, missing="content")),
        one("ask_content_name", partial(send_name, missing=True)),
        one("ask_number", partial(send_number, missing="number")),
        one("ask_contact_number", partial(add_contact, missing=True)),
        one("ask_when", partial(remind_at, missing="when")),
        one("ask_what", partial(remind_at, missing="what")),
        one("ask_new_number", partial(modify_contact, missing=True)),
        one("ask_unit", partial(units, missing=True)),
        # disambiguates
        one("which_send", partial(send_name, ambiguous=True)),
        one("which_phone", partial(phone_of, ambiguous=True)),
        one("which_modify", partial(modify_contact, ambiguous=True)),
        one("which_remove", partial(remove_contact, ambiguous=True)),
        one("which_message", partial(last_message, ambiguous=True)),
        # several
        one("ask_content_cellular_off", partial(send_name, missing=True), cellular=False),
        one("which_send_cellular_off", partial(send_name, ambiguous=True), cellular=False),
        one("ask_contact_number_raw", partial(add_contact, raw=True, missing=True)),
        one("ask_when_relative", partial(remind_in, missing=True)),
        one("which_ask_content", partial(send_name, missing=True, ambiguous=True)),
        one("then_units_stock_off", units, partial(stock, off=True)),
        one("which_modify_raw", partial(modify_contact, raw=True, ambiguous=True)),
    ]


def _insufficient() -> list[Shape]:
    """A tool is withheld without which a request cannot be carried out."""
    no = partial(_of, INSUFFICIENT)
    contacts, reminders = no("search_contacts"), no("search_reminder")
    clock, dates = no("get_current_timestamp"), no("datetime_info_to_timestamp")
    no_wifi = no("set_wifi_status")
    no_cellular = no("set_cellular_service_status")
    return [
        # It is the request's main tool, or nothing can stand in for it.
        no_wifi("no_set_wifi", _set("wifi", True)),
        no_cellular("no_set_cellular", _set("cellular", False)),
        no("set_location_service_status")("no_set_location", _set("location", True)),
        no("get_wifi_status")("no_get_wifi", _get("wifi", True)),
        no("unit_conversion")("no_units", units),
        no("search_stock")("no_stock", stock),
        no("convert_currency")("no_currency", currency),
        no("search_weather_around_lat_lon")("no_weather", weather),
        no("search_location_around_lat_lon")("no_place", place_near),
        no("search_holiday")("no_holiday", holiday),
        no_cellular("stuck_cellular", send_number, cellular=False),
        no_wifi("stuck_wifi", partial(stock, off=True)),
        # It finds an argument of the main tool, so that one could be invented.
        contacts("no_contacts_send", send_name),
        contacts("no_contacts_modify", modify_contact),
        clock("no_clock_until", time_until),
        contacts("no_contacts_relation", partial(send_name, by="relationship")),
        dates("no_date_until", time_until),
        contacts("no_contacts_message", last_message),
        clock("no_clock_remind", remind_in),
        dates("no_date_remind", remind_at),
        reminders("no_reminders_edit", edit_reminder),
        reminders("no_reminders_when", reminder_when),
        reminders("no_reminders_postpone", postpone),
        contacts("no_contacts_modify_raw", partial(modify_contact, raw=True)),
        # Other capabilities are needed, too.
        contacts("set_then_no_contacts", _set("wifi", True), send_name),
        reminders("units_then_no_reminders", units, edit_reminder),
        contacts("if_no_contacts", _if(send_name, "location", True)),
        dates("if_no_date", _if(remind_at, "wifi", True)),
    ]
