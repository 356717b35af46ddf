"""Shapes of the category insufficient information: a tool is withheld without which a request
cannot be carried out.
"""

from __future__ import annotations

from functools import partial

from trace_bench.envs.toolsandbox.scenarios.requests.contacts import modify_contact
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
)
from trace_bench.envs.toolsandbox.scenarios.requests.request import Kind
from trace_bench.envs.toolsandbox.scenarios.requests.searches import (
    currency,
    place_near,
    stock,
    weather,
)
from trace_bench.envs.toolsandbox.scenarios.requests.settings import (
    conditional,
    get_status,
    set_status,
)
from trace_bench.envs.toolsandbox.scenarios.requests.utilities import holiday, time_until, units
from trace_bench.envs.toolsandbox.scenarios.shapes.shape import INSUFFICIENT, Shape

_CONTACTS = "search_contacts"
_REMINDERS = "search_reminder"
_CLOCK = "get_current_timestamp"
_DATES = "datetime_info_to_timestamp"


def insufficient() -> list[Shape]:
    return [*_refused_at_once(), *_tempting(), *_several()]


def _without(tool: str, name: str, *kinds: Kind, **settings: bool) -> Shape:
    return Shape(name, INSUFFICIENT, kinds, (tool,), tuple(settings.items()))


def _refused_at_once() -> list[Shape]:
    """The withheld tool is the request's main tool, or nothing can stand in for it."""
    cellular_off = partial(set_status, which="cellular", on=False)
    location_on = partial(set_status, which="location", on=True)
    return [
        _without("set_wifi_status", "no_set_wifi", partial(set_status, which="wifi", on=True)),
        _without("set_cellular_service_status", "no_set_cellular", cellular_off),
        _without("set_location_service_status", "no_set_location", location_on),
        _without("get_wifi_status", "no_get_wifi", partial(get_status, which="wifi", on=True)),
        _without("unit_conversion", "no_units", units),
        _without("search_stock", "no_stock", stock),
        _without("convert_currency", "no_currency", currency),
        _without("search_weather_around_lat_lon", "no_weather", weather),
        _without("search_location_around_lat_lon", "no_place", place_near),
        _without("search_holiday", "no_holiday", holiday),
        _without("set_cellular_service_status", "stuck_cellular", send_number, cellular=False),
        _without("set_wifi_status", "stuck_wifi", partial(stock, off=True)),
    ]


def _tempting() -> list[Shape]:
    """The withheld tool finds an argument of the main tool, so that one could be invented."""
    return [
        _without(_CONTACTS, "no_contacts_send", send_name),
        _without(_CONTACTS, "no_contacts_modify", modify_contact),
        _without(_CLOCK, "no_clock_until", time_until),
        _without(_CONTACTS, "no_contacts_relation", partial(send_name, by="relationship")),
        _without(_DATES, "no_date_until", time_until),
        _without(_CONTACTS, "no_contacts_message", last_message),
        _without(_CLOCK, "no_clock_remind", remind_in),
        _without(_DATES, "no_date_remind", remind_at),
        _without(_REMINDERS, "no_reminders_edit", edit_reminder),
        _without(_REMINDERS, "no_reminders_when", reminder_when),
        _without(_REMINDERS, "no_reminders_postpone", postpone),
        _without(_CONTACTS, "no_contacts_modify_raw", partial(modify_contact, raw=True)),
    ]


def _several() -> list[Shape]:
    """Needs other capabilities, too."""
    set_wifi = partial(set_status, which="wifi", on=True)
    if_send = partial(conditional, kind=send_name, which="location", holds=True)
    if_remind = partial(conditional, kind=remind_at, which="wifi", holds=True)
    return [
        _without(_CONTACTS, "set_then_no_contacts", set_wifi, send_name),
        _without(_REMINDERS, "units_then_no_reminders", units, edit_reminder),
        _without(_CONTACTS, "if_no_contacts", if_send),
        _without(_DATES, "if_no_date", if_remind),
    ]
