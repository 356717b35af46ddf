"""Moments and spans of time in requests. All times are UTC."""

from __future__ import annotations

import datetime as dt
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.solver import Solver, Steps, call_tool

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
