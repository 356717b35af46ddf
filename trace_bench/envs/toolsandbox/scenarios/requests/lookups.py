"""Requests that need a web service or a computation: stocks, currencies, weather, places, units and
dates; how moments and spans of time are written. All times are UTC."""

from __future__ import annotations

import datetime as dt
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.pools import CURRENCIES, UNITS, Choices
from trace_bench.envs.toolsandbox.scenarios.requests.settings import SETTERS
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CONVERT,
    DECLINE,
    DECLINED,
    GiveUp,
    Request,
    Solution,
    Solver,
    Steps,
    ask_user,
    call_tool,
)

PLACE_TOOLS = (
    "get_current_location",
    "search_lat_lon",
    "search_location_around_lat_lon",
    "search_weather_around_lat_lon",
    "calculate_lat_lon_distance",
    *SETTERS,
)
PLACES = ("pharmacy", "bakery", "library", "museum", "bank", "hotel", "park", "gym", "cinema")


def stock(choices: Choices, currency: bool = False, off: bool = False) -> Request:
    """Tell a stock's price. `currency`: in another one than US dollars; `off`: wifi is off."""
    symbol, code = choices.ticker(), choices.rng.choice(CURRENCIES)

    def solution(solver: Solver) -> Solution:
        solver.need("search_stock")
        found = yield from call_tool(solver, "search_stock", {"query": symbol})
        if found is None:
            raise GiveUp("Sorry, I found nothing.")
        price, unit = found["price"], "USD"
        if currency and solver.can(CONVERT):
            arguments = {"amount": price, "from_currency_code": unit, "to_currency_code": code}
            price = yield from call_tool(solver, "convert_currency", arguments)
            unit = code
        return f"The price is {price} {unit}."

    tail = f" in {code}" if currency else ""
    clause = choices.clause(
        "stock_in" if currency else "stock", f"tell me the price of {symbol} stock{tail}",
        f"look up the {symbol} stock price{tail}", f"find what {symbol} trades at{tail}",
        f"check the {symbol} share price{tail}",
    )  # fmt: skip
    return Request(clause, solution, LOOKUP_TOOLS, "search_stock", {"wifi": not off})


def currency(choices: Choices, off: bool = False) -> Request:
    """Convert an amount of money. `off`: wifi is off."""
    amount = choices.rng.randrange(2, 500)
    source, target = choices.rng.sample((*CURRENCIES, "USD"), 2)

    def solution(solver: Solver) -> Solution:
        solver.need("convert_currency")
        arguments = {"amount": amount, "from_currency_code": source, "to_currency_code": target}
        value = yield from call_tool(solver, "convert_currency", arguments)
        return f"That is {value} {target}."

    clause = choices.clause(
        "currency", f"convert {amount} {source} to {target}",
        f"exchange {amount} {source} to {target}",
        f"tell me what {amount} {source} is in {target}", f"work out {amount} {source} in {target}",
    )  # fmt: skip
    return Request(clause, solution, LOOKUP_TOOLS, "convert_currency", {"wifi": not off})


def weather(choices: Choices, fahrenheit: bool = False, off: str = "") -> Request:
    """Tell the temperature here, today or in some days. `off`: "wifi" or "location" is off."""
    days = choices.rng.randrange(0, 4)

    def solution(solver: Solver) -> Solution:
        solver.need("search_weather_around_lat_lon")
        found = yield from call_tool(solver, "search_weather_around_lat_lon", {"days": days})
        value, unit = found["temperature"], "celsius"
        if fahrenheit and solver.can(CONVERT):
            arguments = {"amount": value, "from_unit": "celsius", "to_unit": "fahrenheit"}
            value = yield from call_tool(solver, "unit_conversion", arguments)
            unit = "fahrenheit"
        return f"It will be {value} {unit}."

    when = ("today", "tomorrow", "in 2 days", "in 3 days")[days]
    tail = " in fahrenheit" if fahrenheit else ""
    clause = choices.clause(
        "weather_f" if fahrenheit else "weather", f"tell me the temperature {when}{tail}",
        f"look up how warm it is {when}{tail}", f"check the temperature {when}{tail}",
        f"find the temperature here {when}{tail}",
    )  # fmt: skip
    tools = (*PLACE_TOOLS, "unit_conversion")
    return Request(clause, solution, tools, "search_weather_around_lat_lon", _services(off))


def where_am_i(choices: Choices, off: str = "") -> Request:
    """Tell the address here. `off`: "wifi" or "location" is off."""

    def solution(solver: Solver) -> Solution:
        solver.need("get_current_location", "search_lat_lon")
        place = yield from call_tool(solver, "get_current_location", {})
        arguments = {"latitude": place["latitude"], "longitude": place["longitude"]}
        address = yield from call_tool(solver, "search_lat_lon", arguments)
        return f"You are at {address}."

    clause = choices.clause(
        "where", "tell me where I am", "find my address", "look up my current address",
        "say where I am now",
    )  # fmt: skip
    return Request(clause, solution, PLACE_TOOLS, "search_lat_lon", _services(off))


def place_near(choices: Choices, off: str = "") -> Request:
    """Find a place of some kind. `off`: "wifi" or "location" is off."""
    kind = choices.rng.choice(PLACES)

    def solution(solver: Solver) -> Solution:
        solver.need("search_location_around_lat_lon")
        arguments = {"location": kind}
        found = yield from call_tool(solver, "search_location_around_lat_lon", arguments)
        return f"Go to {found[0]['name']}."

    clause = choices.clause(
        "near", f"find a {kind} near me", f"look for a {kind} around here",
        f"tell me the nearest {kind}", f"find the closest {kind}",
    )  # fmt: skip
    return Request(clause, solution, PLACE_TOOLS, "search_location_around_lat_lon", _services(off))


def _services(off: str) -> dict[str, bool]:
    return {"wifi": off != "wifi", "location_service": off != "location"}


LOOKUP_TOOLS = ("search_stock", "convert_currency", "unit_conversion", *SETTERS)
HOLIDAYS = ("Christmas Day", "Independence Day", "Thanksgiving", "Labor Day", "Memorial Day")


def units(choices: Choices, missing: bool = False) -> Request:
    """Convert an amount. `missing`: the unit wanted is not given until asked for."""
    amount = choices.rng.randrange(2, 100)
    source, target = choices.rng.choice(UNITS)

    def solution(solver: Solver) -> Solution:
        solver.need("unit_conversion")
        unit = target
        if missing:
            unit = yield from ask_user(solver, "Which unit should I use?", "yard")
        arguments = {"amount": amount, "from_unit": source, "to_unit": unit}
        value = yield from call_tool(solver, "unit_conversion", arguments)
        return f"That is {value} {unit}."

    if missing:
        clause = choices.clause(
            "units_no_target", f"convert {amount} {source} to another unit",
            f"express {amount} {source} differently", f"convert {amount} {source}",
            f"change {amount} {source} into something else",
        )  # fmt: skip
    else:
        clause = choices.clause(
            "units", f"convert {amount} {source} to {target}",
            f"tell me what {amount} {source} is in {target}",
            f"express {amount} {source} in {target}", f"turn {amount} {source} into {target}",
        )  # fmt: skip
    answers = [{"keywords": ["unit"], "reply": target}] if missing else []
    return Request(clause, solution, LOOKUP_TOOLS, "unit_conversion", answers=answers)


def duration(choices: Choices) -> Request:
    """Express seconds in hours, minutes and seconds."""
    seconds = choices.rng.randrange(100, 20000)

    def solution(solver: Solver) -> Solution:
        tool = "seconds_to_hours_minutes_seconds"
        solver.need(tool)
        parts = yield from call_tool(solver, tool, {"seconds": seconds})
        text = f"{parts['hour']} hours {parts['minute']} minutes {parts['second']} seconds"
        return f"That is {text}."

    clause = choices.clause(
        "duration", f"convert {seconds} seconds to hours", f"tell me how long {seconds} seconds is",
        f"express {seconds} seconds in hours and minutes", f"break down {seconds} seconds",
    )  # fmt: skip
    tools = ("seconds_to_hours_minutes_seconds", "unit_conversion", "timestamp_diff")
    return Request(clause, solution, tools, "seconds_to_hours_minutes_seconds")


def time_until(choices: Choices) -> Request:
    """Tell how long it is until a date: two timestamps and their difference."""
    when = moment(choices)
    date = spoken_moment(when)

    def solution(solver: Solver) -> Solution:
        solver.need("timestamp_diff")
        clocks = ("get_current_timestamp", "datetime_info_to_timestamp")
        if not solver.tools.issuperset(clocks) and solver.can(DECLINE):
            raise GiveUp(DECLINED)
        now = then = INVENTED_TIME
        if "get_current_timestamp" in solver.tools:
            now = yield from call_tool(solver, "get_current_timestamp", {})
        if "datetime_info_to_timestamp" in solver.tools:
            then = yield from timestamp_of(solver, when)
        arguments = {"timestamp_0": now, "timestamp_1": then}
        gap = yield from call_tool(solver, "timestamp_diff", arguments)
        return f"It is {gap['days']} days away."

    clause = choices.clause(
        "until", f"tell me how many days until {date}", f"count the days until {date}",
        f"find how far away {date} is", f"say how many days are left until {date}",
    )  # fmt: skip
    return Request(clause, solution, (*TIME_TOOLS, "timestamp_diff"), "timestamp_diff")


def holiday(choices: Choices, off: bool = False) -> Request:
    """Tell the date of a holiday. `off`: wifi is off."""
    name, year = choices.rng.choice(HOLIDAYS), choices.rng.randrange(2025, 2031)

    def solution(solver: Solver) -> Solution:
        solver.need("search_holiday")
        arguments = {"holiday_name": name, "year": year}
        stamp = yield from call_tool(solver, "search_holiday", arguments)
        info = yield from call_tool(solver, "timestamp_to_datetime_info", {"timestamp": stamp})
        return f"It is on {info['month']}/{info['day']}/{info['year']}."

    clause = choices.clause(
        "holiday", f"tell me when {name} is in {year}", f"look up the date of {name} {year}",
        f"find when {name} {year} is", f"check which day {name} {year} is",
    )  # fmt: skip
    tools = ("search_holiday", *TIME_TOOLS, *SETTERS)
    return Request(clause, solution, tools, "search_holiday", {"wifi": not off})


TIME_TOOLS = (
    "get_current_timestamp",
    "shift_timestamp",
    "datetime_info_to_timestamp",
    "timestamp_to_datetime_info",
)
INVENTED_TIME = 1800000000  # what a solver goes on with that cannot look a time up


def moment(choices: Choices) -> dt.datetime:
    rng = choices.rng
    return dt.datetime(
        rng.choice((2027, 2028)), rng.randrange(1, 13), rng.randrange(1, 29),
        rng.randrange(7, 22), rng.choice((0, 15, 20, 30, 40, 45)), tzinfo=dt.UTC,
    )  # fmt: skip


def spoken_moment(when: dt.datetime) -> str:
    """A moment as the user writes it."""
    return f"{when.month}/{when.day}/{when.year} at {when.hour}:{when.minute:02d}"


def spoken_info(info: dict[str, Any]) -> str:
    """A moment as the assistant writes it, from a result of `timestamp_to_datetime_info`."""
    return f"{info['month']}/{info['day']}/{info['year']} at {info['hour']}:{info['minute']:02d}"


def span(choices: Choices) -> tuple[str, dict[str, int]]:
    """A length of time as the user writes it, and as arguments of `shift_timestamp`."""
    unit = choices.rng.choice(("minutes", "hours", "days", "weeks"))
    amount = choices.rng.randrange(2, 30)
    return f"{amount} {unit}", {unit: amount}


def timestamp_of(solver: Solver, when: dt.datetime) -> Steps:
    arguments = {
        "year": when.year, "month": when.month, "day": when.day,
        "hour": when.hour, "minute": when.minute, "second": 0,
    }  # fmt: skip
    return (yield from call_tool(solver, "datetime_info_to_timestamp", arguments))
