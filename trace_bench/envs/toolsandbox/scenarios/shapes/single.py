"""Shapes of the category single tool call."""

from __future__ import annotations

from functools import partial

from trace_bench.envs.toolsandbox.scenarios.requests.contacts import add_contact, phone_of
from trace_bench.envs.toolsandbox.scenarios.requests.messages import send_number
from trace_bench.envs.toolsandbox.scenarios.requests.request import Kind
from trace_bench.envs.toolsandbox.scenarios.requests.searches import currency, stock, weather
from trace_bench.envs.toolsandbox.scenarios.requests.settings import (
    SWITCHES,
    get_status,
    set_status,
)
from trace_bench.envs.toolsandbox.scenarios.requests.utilities import units
from trace_bench.envs.toolsandbox.scenarios.shapes.shape import SINGLE, Shape


def single() -> list[Shape]:
    def one(name: str, kind: Kind) -> Shape:
        return Shape(name, SINGLE, (kind,))

    return [
        *(
            one(f"set_{which}_{state}", partial(set_status, which=which, on=state == "on"))
            for which in ("wifi", "cellular", "location")
            for state in ("on", "off")
        ),
        *(one(f"get_{which}", partial(get_status, which=which)) for which in SWITCHES),
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
