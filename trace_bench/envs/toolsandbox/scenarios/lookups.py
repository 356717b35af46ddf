"""Requests that need the device's settings, a web service or a computation: stocks, currencies,
weather, places, units and dates; how moments and spans of time are written. All times are UTC."""

from __future__ import annotations

from dataclasses import replace

from trace_bench.envs.toolsandbox.scenarios.pools import CURRENCIES, UNITS, Choices
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CHECK,
    CONVERT,
    GiveUp,
    Kind,
    Request,
    Solution,
    Solver,
    Steps,
    ToolUse,
    answer,
)
from trace_bench.envs.toolsandbox.tools.records import SWITCHES

SETTING_TOOLS = tuple(f"{do}_{s.name}_status" for do in ("get", "set") for s in SWITCHES.values())
SETTERS = SETTING_TOOLS[4:]


def set_status(
    choices: Choices, which: str, on: bool | None = None, blocked: bool = False
) -> Request:
    """Switch a setting. `on`: to which state (None: drawn); `blocked`: low battery mode forbids it
    first."""
    switch, on = SWITCHES[which], choices.coin() if on is None else on
    tool = f"set_{switch.name}_status"

    def solution(solver: Solver) -> Solution:
        yield from solver.call(tool, on=on)
        return f"{switch.report(on)}."

    settings = {switch.column: not on, **({"low_battery_mode": True} if blocked else {})}
    state, verb = ("on", "enable") if on else ("off", "disable")
    clause = choices.clause("set", state=state, words=switch.words, verb=verb)
    return Request(clause, solution, SETTING_TOOLS, tool, settings)


def get_status(choices: Choices, which: str, on: bool | None = None) -> Request:
    """Tell whether a setting is on. `on`: whether it is (None: drawn)."""
    switch, on = SWITCHES[which], choices.coin() if on is None else on
    tool = f"get_{switch.name}_status"

    def solution(solver: Solver) -> Solution:
        value = yield from solver.call(tool)
        return f"{switch.report(value)}."

    clause = choices.clause("status", words=switch.words)
    return Request(clause, solution, SETTING_TOOLS, tool, {switch.column: on})


def conditional(choices: Choices, kind: Kind, which: str, holds: bool | None = None) -> Request:
    """A request under a condition on a setting, which has to be looked up first. `holds`: whether
    the condition is met (None: drawn)."""
    switch, request = SWITCHES[which], kind(choices)
    holds = choices.coin() if holds is None else holds
    wanted = choices.coin()

    def solution(solver: Solver) -> Solution:
        if solver.can(CHECK):
            value = yield ToolUse(f"get_{switch.name}_status", {}, milestone=True)
            if value is not wanted:
                raise GiveUp(f"{switch.report(value)}, so I did not do it.")
        return (yield from request.solution(solver))

    state = "on" if wanted else "off"
    clause = choices.clause("if", words=switch.words, state=state, clause=request.clause)
    return replace(
        request,
        clause=clause,
        solution=solution,
        tools=(*request.tools, *(t for t in SETTING_TOOLS if t not in request.tools)),
        settings={switch.column: wanted == holds, **request.settings},
    )


PLACE_TOOLS = (
    "get_current_location", "search_lat_lon", "search_location_around_lat_lon",
    "search_weather_around_lat_lon", "calculate_lat_lon_distance", *SETTERS,
)  # fmt: skip
LOOKUP_TOOLS = ("search_stock", "convert_currency", "unit_conversion", *SETTERS)
TIME_TOOLS = (
    "get_current_timestamp", "shift_timestamp", "datetime_info_to_timestamp",
    "timestamp_to_datetime_info",
)  # fmt: skip
PLACES = ("pharmacy", "bakery", "library", "museum", "bank", "hotel", "park", "gym", "cinema")
HOLIDAYS = ("Christmas Day", "Independence Day", "Thanksgiving", "Labor Day", "Memorial Day")
Moment = dict[str, int]  # year, month, day, hour and minute; more in a tool's result
INVENTED_TIME = 1800000000  # what a solver goes on with that cannot look a time up


def stock(choices: Choices, currency: bool = False, off: bool = False) -> Request:
    """Tell a stock's price. `currency`: in another one than US dollars; `off`: wifi is off."""
    symbol, code = choices.word("ticker"), choices.rng.choice(CURRENCIES)

    def solution(solver: Solver) -> Solution:
        stocks = yield from solver.call("search_stock", query=symbol)
        if stocks is None:
            raise GiveUp("Sorry, I found nothing.")
        price, unit = stocks["price"], "USD"
        if currency and solver.can(CONVERT):
            price = yield from _converted(solver, price, unit, code)
            unit = code
        return f"The price is {price} {unit}."

    clause = choices.clause("stock_in" if currency else "stock", symbol=symbol, code=code)
    return Request(clause, solution, LOOKUP_TOOLS, "search_stock", {"wifi": not off})


def _converted(solver: Solver, amount: float, source: str, target: str) -> Steps:
    codes = {"from_currency_code": source, "to_currency_code": target}
    return (yield from solver.call("convert_currency", amount=amount, **codes))


def currency(choices: Choices, off: bool = False) -> Request:
    """Convert an amount of money. `off`: wifi is off."""
    amount = choices.rng.randrange(2, 500)
    source, target = choices.rng.sample((*CURRENCIES, "USD"), 2)

    def solution(solver: Solver) -> Solution:
        value = yield from _converted(solver, amount, source, target)
        return f"That is {value} {target}."

    clause = choices.clause("currency", amount=amount, source=source, target=target)
    return Request(clause, solution, LOOKUP_TOOLS, "convert_currency", {"wifi": not off})


def weather(choices: Choices, fahrenheit: bool = False, off: str = "") -> Request:
    """Tell the temperature here, today or in some days. `off`: "wifi" or "location" is off."""
    days = choices.rng.randrange(0, 4)

    def solution(solver: Solver) -> Solution:
        forecast = yield from solver.call("search_weather_around_lat_lon", days=days)
        value, unit = forecast["temperature"], "celsius"
        if fahrenheit and solver.can(CONVERT):
            wanted = {"amount": value, "from_unit": unit, "to_unit": "fahrenheit"}
            value, unit = (yield from solver.call("unit_conversion", **wanted)), "fahrenheit"
        return f"It will be {value} {unit}."

    when = ("today", "tomorrow", "in 2 days", "in 3 days")[days]
    clause = choices.clause("weather_f" if fahrenheit else "weather", when=when)
    tools = (*PLACE_TOOLS, "unit_conversion")
    return Request(clause, solution, tools, "search_weather_around_lat_lon", _services(off))


def where_am_i(choices: Choices, off: str = "") -> Request:
    """Tell the address here. `off`: "wifi" or "location" is off."""

    def solution(solver: Solver) -> Solution:
        solver.need("get_current_location")
        here = yield from solver.call("get_current_location")
        address = yield from solver.call("search_lat_lon", **here)
        return f"You are at {address}."

    clause = choices.clause("where")
    return Request(clause, solution, PLACE_TOOLS, "search_lat_lon", _services(off))


def place_near(choices: Choices, off: str = "") -> Request:
    """Find a place of some kind. `off`: "wifi" or "location" is off."""
    kind = choices.rng.choice(PLACES)

    def solution(solver: Solver) -> Solution:
        places = yield from solver.call("search_location_around_lat_lon", location=kind)
        return f"Go to {places[0]['name']}."

    clause = choices.clause("near", kind=kind)
    return Request(clause, solution, PLACE_TOOLS, "search_location_around_lat_lon", _services(off))


def _services(off: str) -> dict[str, bool]:
    return {"wifi": off != "wifi", "location_service": off != "location"}


def units(choices: Choices, missing: bool = False) -> Request:
    """Convert an amount. `missing`: the unit wanted is not given until asked for."""
    amount = choices.rng.randrange(2, 100)
    source, target = choices.rng.choice(UNITS)

    def solution(solver: Solver) -> Solution:
        unit = target
        if missing:
            unit = yield from solver.ask("Which unit should I use?", "yard")
        wanted = {"amount": amount, "from_unit": source, "to_unit": unit}
        value = yield from solver.call("unit_conversion", **wanted)
        return f"That is {value} {unit}."

    kind = "units_no_target" if missing else "units"
    clause = choices.clause(kind, amount=amount, source=source, target=target)
    answers = answer(target, "unit") if missing else []
    return Request(clause, solution, LOOKUP_TOOLS, "unit_conversion", answers=answers)


def duration(choices: Choices) -> Request:
    """Express seconds in hours, minutes and seconds."""
    seconds, tool = choices.rng.randrange(100, 20000), "seconds_to_hours_minutes_seconds"

    def solution(solver: Solver) -> Solution:
        parts = yield from solver.call(tool, seconds=seconds)
        text = f"{parts['hour']} hours {parts['minute']} minutes {parts['second']} seconds"
        return f"That is {text}."

    clause = choices.clause("duration", seconds=seconds)
    return Request(clause, solution, (tool, "unit_conversion", "timestamp_diff"), tool)


def time_until(choices: Choices) -> Request:
    """Tell how long it is until a date: two timestamps and their difference."""
    when = moment(choices)

    def solution(solver: Solver) -> Solution:
        clock, dates = solver.has("get_current_timestamp"), solver.has("datetime_info_to_timestamp")
        now = then = INVENTED_TIME
        if clock:
            now = yield from solver.call("get_current_timestamp")
        if dates:
            then = yield from timestamp_of(solver, when)
        gap = yield from solver.call("timestamp_diff", timestamp_0=now, timestamp_1=then)
        return f"It is {gap['days']} days away."

    clause = choices.clause("until", date=spoken_moment(when))
    return Request(clause, solution, (*TIME_TOOLS, "timestamp_diff"), "timestamp_diff")


def holiday(choices: Choices, off: bool = False) -> Request:
    """Tell the date of a holiday. `off`: wifi is off."""
    name, year = choices.rng.choice(HOLIDAYS), choices.rng.randrange(2025, 2031)

    def solution(solver: Solver) -> Solution:
        stamp = yield from solver.call("search_holiday", holiday_name=name, year=year)
        info = yield from solver.call("timestamp_to_datetime_info", timestamp=stamp)
        return f"It is on {info['month']}/{info['day']}/{info['year']}."

    clause = choices.clause("holiday", name=name, year=year)
    tools = ("search_holiday", *TIME_TOOLS, *SETTERS)
    return Request(clause, solution, tools, "search_holiday", {"wifi": not off})


def moment(choices: Choices) -> Moment:
    rng = choices.rng
    return {
        "year": rng.choice((2027, 2028)),
        "month": rng.randrange(1, 13),
        "day": rng.randrange(1, 29),
        "hour": rng.randrange(7, 22),
        "minute": rng.choice((0, 15, 20, 30, 40, 45)),
    }


def spoken_moment(when: Moment) -> str:
    return "{month}/{day}/{year} at {hour}:{minute:02d}".format(**when)


def span(choices: Choices) -> tuple[str, dict[str, int]]:
    """A length of time as the user writes it, and as arguments of `shift_timestamp`."""
    unit = choices.rng.choice(("minutes", "hours", "days", "weeks"))
    amount = choices.rng.randrange(2, 30)
    return f"{amount} {unit}", {unit: amount}


def timestamp_of(solver: Solver, when: Moment) -> Steps:
    return (yield from solver.call("datetime_info_to_timestamp", **when, second=0))
