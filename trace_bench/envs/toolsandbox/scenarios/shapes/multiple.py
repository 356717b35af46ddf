"""Shapes of the category multiple tool calls, by the capability that they need."""

from __future__ import annotations

from functools import partial

from trace_bench.envs.toolsandbox.scenarios.requests.contacts import (
    add_contact,
    modify_contact,
    phone_of,
    remove_contact,
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
from trace_bench.envs.toolsandbox.scenarios.requests.request import Kind
from trace_bench.envs.toolsandbox.scenarios.requests.searches import (
    currency,
    place_near,
    stock,
    weather,
    where_am_i,
)
from trace_bench.envs.toolsandbox.scenarios.requests.settings import (
    conditional,
    get_status,
    set_status,
)
from trace_bench.envs.toolsandbox.scenarios.requests.utilities import (
    duration,
    holiday,
    time_until,
    units,
)
from trace_bench.envs.toolsandbox.scenarios.shapes.shape import MULTIPLE, Shape


def multiple() -> list[Shape]:
    return [*_plain(), *_recover(), *_convert(), *_check(), *_complete(), *_several()]


def _one(name: str, *kinds: Kind, **settings: bool) -> Shape:
    return Shape(name, MULTIPLE, kinds, (), tuple(settings.items()))


def _when(kind: Kind, which: str) -> Kind:
    return partial(conditional, kind=kind, which=which)


def _plain() -> list[Shape]:
    return [
        _one("send_name", send_name),
        _one("send_relation", partial(send_name, by="relationship")),
        _one("modify_contact", modify_contact),
        _one("remove_contact", remove_contact),
        _one("last_message", last_message),
        _one("remind_at", remind_at),
        _one("reminder_when", reminder_when),
        _one("edit_reminder", edit_reminder),
        _one("remove_reminder", remove_reminder),
        _one("holiday", holiday),
        _one("where_am_i", where_am_i),
        _one("place_near", place_near),
        _one("time_until", time_until),
        _one("duration", duration),
    ]


def _recover() -> list[Shape]:
    set_blocked = partial(set_status, on=True, blocked=True)
    return [
        _one("send_number_cellular_off", send_number, cellular=False),
        _one("send_name_cellular_off", send_name, cellular=False),
        _one("send_number_low_battery", send_number, cellular=False, low_battery_mode=True),
        _one("stock_wifi_off", partial(stock, off=True)),
        _one("currency_wifi_off", partial(currency, off=True)),
        _one("weather_wifi_off", partial(weather, off="wifi")),
        _one("weather_location_off", partial(weather, off="location")),
        _one("where_location_off", partial(where_am_i, off="location")),
        _one("holiday_wifi_off", partial(holiday, off=True)),
        _one("place_wifi_off", partial(place_near, off="wifi")),
        _one("set_wifi_low_battery", partial(set_blocked, which="wifi")),
        _one("set_location_low_battery", partial(set_blocked, which="location")),
    ]


def _convert() -> list[Shape]:
    return [
        _one("remind_in", remind_in),
        _one("postpone", postpone),
        _one("weather_fahrenheit", partial(weather, fahrenheit=True)),
        _one("modify_contact_raw", partial(modify_contact, raw=True)),
        _one("stock_in_currency", partial(stock, currency=True)),
    ]


def _check() -> list[Shape]:
    return [
        _one("if_send_number", _when(send_number, "wifi")),
        _one("if_add_contact", _when(add_contact, "location")),
        _one("if_remove_contact", _when(remove_contact, "wifi")),
        _one("if_remind_at", _when(remind_at, "location")),
        _one("if_send_name", _when(send_name, "location")),
    ]


def _complete() -> list[Shape]:
    set_wifi = partial(set_status, which="wifi")
    set_location = partial(set_status, which="location")
    get_wifi = partial(get_status, which="wifi", on=True)
    get_location = partial(get_status, which="location")
    return [
        _one("both_set_send", set_wifi, send_number),
        _one("both_units_duration", units, duration),
        _one("both_add_send", add_contact, send_number),
        _one("both_remove_reminder_set", remove_reminder, set_wifi),
        _one("both_send_name_remind", send_name, remind_at),
        _one("both_units_stock", units, stock),
        _one("both_phone_status", phone_of, get_location),
        _one("three_set_units_status", set_location, units, get_wifi),
    ]


def _several() -> list[Shape]:
    set_location, stock_off = partial(set_status, which="location"), partial(stock, off=True)
    raw_send, raw_add = partial(send_number, raw=True), partial(add_contact, raw=True)
    weather_off = partial(weather, fahrenheit=True, off="wifi")
    return [
        _one("send_raw_cellular_off", raw_send, cellular=False),
        _one("both_set_send_cellular_off", set_location, send_number, cellular=False),
        _one("both_units_stock_off", units, stock_off),
        _one("both_raw_add_units", raw_add, units),
        _one("both_remind_in_units", remind_in, units),
        _one("if_send_cellular_off", _when(send_number, "location"), cellular=False),
        _one("if_add_raw", _when(raw_add, "wifi")),
        _one("weather_fahrenheit_wifi_off", weather_off),
        _one("three_raw_units_stock_off", raw_add, units, stock_off),
        _one("if_both_send_units", _when(send_number, "wifi"), units),
    ]
