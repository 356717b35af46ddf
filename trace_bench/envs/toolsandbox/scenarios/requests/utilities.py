"""Requests that need a computation: units, durations, dates."""

from __future__ import annotations

from trace_bench.envs.toolsandbox.scenarios.capabilities import DECLINE
from trace_bench.envs.toolsandbox.scenarios.pools import UNITS
from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.requests.request import Request
from trace_bench.envs.toolsandbox.scenarios.requests.settings import SETTERS
from trace_bench.envs.toolsandbox.scenarios.requests.times import (
    INVENTED_TIME,
    TIME_TOOLS,
    moment,
    spoken_moment,
    timestamp_of,
)
from trace_bench.envs.toolsandbox.scenarios.solver import (
    DECLINED,
    GiveUp,
    Solution,
    Solver,
    ask_user,
    call_tool,
)

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
