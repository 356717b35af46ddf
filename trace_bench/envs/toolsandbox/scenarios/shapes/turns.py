"""Shapes of the category multiple user turns, by the capability that they need."""

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
    remind_at,
    remind_in,
    reminder_when,
    remove_reminder,
)
from trace_bench.envs.toolsandbox.scenarios.requests.request import Kind
from trace_bench.envs.toolsandbox.scenarios.requests.searches import currency, stock
from trace_bench.envs.toolsandbox.scenarios.requests.settings import get_status, set_status
from trace_bench.envs.toolsandbox.scenarios.requests.utilities import duration, units
from trace_bench.envs.toolsandbox.scenarios.shapes.shape import TURNS, Shape


def turns() -> list[Shape]:
    return [*_plain(), *_ask(), *_disambiguate(), *_several()]


def _follow(name: str, *kinds: Kind, **settings: bool) -> Shape:
    return Shape(name, TURNS, kinds, (), tuple(settings.items()))


def _plain() -> list[Shape]:
    return [
        _follow("then_set_units", partial(set_status, which="wifi", on=False), units),
        _follow("then_send_units", send_number, units),
        _follow("then_phone_low", phone_of, partial(get_status, which="low_battery")),
        _follow("then_units_units", units, units),
        _follow("then_remove_reminder_stock", remove_reminder, stock),
        _follow("then_add_send", add_contact, send_number),
        _follow("then_reminder_duration", reminder_when, duration),
        _follow("then_stock_currency", stock, currency),
    ]


def _ask() -> list[Shape]:
    return [
        _follow("ask_content", partial(send_number, missing="content")),
        _follow("ask_content_name", partial(send_name, missing=True)),
        _follow("ask_number", partial(send_number, missing="number")),
        _follow("ask_contact_number", partial(add_contact, missing=True)),
        _follow("ask_when", partial(remind_at, missing="when")),
        _follow("ask_what", partial(remind_at, missing="what")),
        _follow("ask_new_number", partial(modify_contact, missing=True)),
        _follow("ask_unit", partial(units, missing=True)),
    ]


def _disambiguate() -> list[Shape]:
    return [
        _follow("which_send", partial(send_name, ambiguous=True)),
        _follow("which_phone", partial(phone_of, ambiguous=True)),
        _follow("which_modify", partial(modify_contact, ambiguous=True)),
        _follow("which_remove", partial(remove_contact, ambiguous=True)),
        _follow("which_message", partial(last_message, ambiguous=True)),
    ]


def _several() -> list[Shape]:
    return [
        _follow("ask_content_cellular_off", partial(send_name, missing=True), cellular=False),
        _follow("which_send_cellular_off", partial(send_name, ambiguous=True), cellular=False),
        _follow("ask_contact_number_raw", partial(add_contact, raw=True, missing=True)),
        _follow("ask_when_relative", partial(remind_in, missing=True)),
        _follow("which_ask_content", partial(send_name, ambiguous=True, missing=True)),
        _follow("then_units_stock_off", units, partial(stock, off=True)),
        _follow("which_modify_raw", partial(modify_contact, ambiguous=True, raw=True)),
    ]
