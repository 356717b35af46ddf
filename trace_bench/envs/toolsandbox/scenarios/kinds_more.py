"""The kinds of requests, continued: reminders, utilities and the search tools."""

from __future__ import annotations

import datetime as dt
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.kinds import SETTERS, Draw, need
from trace_bench.envs.toolsandbox.scenarios.pools import CURRENCIES, UNITS
from trace_bench.envs.toolsandbox.scenarios.program import (
    ASK,
    CONVERT,
    DECLINE,
    DECLINED,
    Abort,
    Mind,
    Part,
    Program,
    Say,
    act,
)

TIME_TOOLS = (
    "get_current_timestamp",
    "shift_timestamp",
    "datetime_info_to_timestamp",
    "timestamp_to_datetime_info",
)
REMINDER_TOOLS = ("add_reminder", "modify_reminder", "search_reminder", "remove_reminder")
LOOKUP_TOOLS = ("search_stock", "convert_currency", "unit_conversion", *SETTERS)
PLACE_TOOLS = (
    "get_current_location",
    "search_lat_lon",
    "search_location_around_lat_lon",
    "search_weather_around_lat_lon",
    "calculate_lat_lon_distance",
    *SETTERS,
)
PLACES = ("pharmacy", "bakery", "library", "museum", "bank", "hotel", "park", "gym", "cinema")
HOLIDAYS = ("Christmas Day", "Independence Day", "Thanksgiving", "Labor Day", "Memorial Day")


def spell(info: dict[str, Any]) -> str:
    """A moment as the assistant says it."""
    return f"{info['month']}/{info['day']}/{info['year']} at {info['hour']}:{info['minute']:02d}"


def moment(d: Draw) -> dt.datetime:
    return dt.datetime(
        d.rng.choice((2027, 2028)), d.rng.randrange(1, 13), d.rng.randrange(1, 29),
        d.rng.randrange(7, 22), d.rng.choice((0, 15, 20, 30, 40, 45)), tzinfo=dt.UTC,
    )  # fmt: skip


def reminder_row(d: Draw, errand: str) -> dict[str, Any]:
    return {
        "reminder_id": d.identity(),
        "content": errand,
        "creation_timestamp": 0,
        "reminder_timestamp": int(moment(d).timestamp()),
        "latitude": None,
        "longitude": None,
    }


def remind_at(d: Draw, missing: str = "") -> Part:
    """A reminder at a date and time. `missing`: "when" or "what" is not said until asked."""
    errand, when = d.pool.errand(d.rng), moment(d)
    date = f"{when.month}/{when.day}/{when.year} at {when.hour}:{when.minute:02d}"

    def program(mind: Mind) -> Program:
        need(mind, "add_reminder")
        what, info = errand, when
        if missing == "what":
            what = (yield Say("What is it about?")) if mind.can(ASK) else "reminder"
        if missing == "when":
            if mind.can(ASK):
                yield Say("When should I remind you?")
            else:
                info = dt.datetime(2026, 1, 1, 12, 0, tzinfo=dt.UTC)
        if "datetime_info_to_timestamp" in mind.tools:
            stamp = yield from act(
                mind, "datetime_info_to_timestamp",
                {"year": info.year, "month": info.month, "day": info.day, "hour": info.hour,
                 "minute": info.minute, "second": 0},
            )  # fmt: skip
        elif mind.can(DECLINE):
            raise Abort(DECLINED)
        else:
            stamp = 1800000000
        yield from act(mind, "add_reminder", {"content": what, "reminder_timestamp": stamp})
        return "The reminder is set."

    answers = []
    if missing == "when":
        request = d.pick(
            "remind_no_when", f"remind me to {errand}", f"set a reminder to {errand}",
            f"add a reminder to {errand}", f"make a reminder: {errand}",
        )  # fmt: skip
        answers = [{"keywords": ["when", "time"], "reply": f"On {date}."}]
    elif missing == "what":
        request = d.pick(
            "remind_no_what", f"remind me on {date}", f"set a reminder on {date}",
            f"add a reminder for {date}", f"make a reminder for {date}",
        )  # fmt: skip
        answers = [{"keywords": ["about", "what"], "reply": errand}]
    else:
        request = d.pick(
            "remind_at", f"remind me to {errand} on {date}", f"on {date} remind me to {errand}",
            f"set a reminder to {errand} on {date}", f"add a reminder for {date} to {errand}",
        )  # fmt: skip
    return Part(
        request, program, (*REMINDER_TOOLS, *TIME_TOOLS), "add_reminder", answers=answers,
    )  # fmt: skip


def _span(d: Draw) -> tuple[str, dict[str, int]]:
    unit = d.rng.choice(("minutes", "hours", "days", "weeks"))
    amount = d.rng.randrange(2, 30)
    return f"{amount} {unit}", {unit: amount}


def remind_in(d: Draw, missing: bool = False) -> Part:
    """A reminder some time from now: the clock has to be read and shifted."""
    errand, (said, shift) = d.pool.errand(d.rng), _span(d)

    def program(mind: Mind) -> Program:
        need(mind, "add_reminder")
        if missing and mind.can(ASK):
            yield Say("When should I remind you?")
        if "get_current_timestamp" not in mind.tools:
            if mind.can(DECLINE):
                raise Abort(DECLINED)
            stamp = 1800000000
        else:
            stamp = yield from act(mind, "get_current_timestamp", {})
            if mind.can(CONVERT) and (mind.can(ASK) or not missing):
                stamp = yield from act(mind, "shift_timestamp", {"timestamp": stamp, **shift})
        yield from act(mind, "add_reminder", {"content": errand, "reminder_timestamp": stamp})
        return "The reminder is set."

    if missing:
        request = d.pick(
            "remind_no_when", f"remind me to {errand}", f"set a reminder to {errand}",
            f"add a reminder to {errand}", f"make a reminder: {errand}",
        )  # fmt: skip
    else:
        request = d.pick(
            "remind_in", f"remind me to {errand} in {said}", f"in {said} remind me to {errand}",
            f"set a reminder to {errand} in {said}", f"add a reminder in {said} to {errand}",
        )  # fmt: skip
    answers = [{"keywords": ["when", "time"], "reply": f"In {said}."}] if missing else []
    return Part(
        request, program, (*REMINDER_TOOLS, *TIME_TOOLS), "add_reminder", answers=answers,
    )  # fmt: skip


def _find_reminder(mind: Mind, errand: str) -> Any:
    if "search_reminder" not in mind.tools:
        if mind.can(DECLINE):
            raise Abort(DECLINED)
        return None  # the caller makes something up
    rows = yield from act(mind, "search_reminder", {"content": errand})
    if not rows:
        raise Abort("Sorry, I found no reminder.")
    return rows[0]


def reminder_when(d: Draw) -> Part:
    errand = d.pool.errand(d.rng)

    def program(mind: Mind) -> Program:
        need(mind, "search_reminder")
        row = (yield from _find_reminder(mind, errand)) or {"reminder_timestamp": 1800000000}
        info = yield from act(
            mind, "timestamp_to_datetime_info", {"timestamp": row["reminder_timestamp"]}
        )
        return f"It is on {spell(info)}."

    request = d.pick(
        "reminder_when", f"tell me when I have to {errand}", f"look up when I must {errand}",
        f"find the time of my reminder to {errand}", f"say when my reminder to {errand} is",
    )  # fmt: skip
    return Part(
        request, program, (*REMINDER_TOOLS, *TIME_TOOLS), "timestamp_to_datetime_info",
        reminders=[reminder_row(d, errand)],
    )  # fmt: skip


def edit_reminder(d: Draw) -> Part:
    errand, new = d.pool.errand(d.rng), d.pool.errand(d.rng)

    def program(mind: Mind) -> Program:
        need(mind, "modify_reminder")
        row = yield from _find_reminder(mind, errand)
        if row is None:
            made_up = {"content": new, "reminder_timestamp": 1800000000}
            yield from act(mind, "add_reminder", made_up)
        else:
            arguments = {"reminder_id": row["reminder_id"], "content": new}
            yield from act(mind, "modify_reminder", arguments)
        return "The reminder is changed."

    request = d.pick(
        "edit_reminder", f"change my reminder to {errand} into {new}",
        f"make my reminder to {errand} say {new}", f"edit the reminder to {errand}: {new}",
        f"replace the reminder to {errand} by {new}",
    )  # fmt: skip
    return Part(
        request, program, (*REMINDER_TOOLS, *TIME_TOOLS), "modify_reminder",
        reminders=[reminder_row(d, errand)], wrong=("modify_reminder", "add_reminder"),
    )  # fmt: skip


def postpone(d: Draw) -> Part:
    errand, (said, shift) = d.pool.errand(d.rng), _span(d)

    def program(mind: Mind) -> Program:
        need(mind, "modify_reminder")
        row = yield from _find_reminder(mind, errand)
        if row is None:
            made_up = {"content": errand, "reminder_timestamp": 1800000000}
            yield from act(mind, "add_reminder", made_up)
            return "The reminder is changed."
        stamp = row["reminder_timestamp"]
        if mind.can(CONVERT):
            stamp = yield from act(mind, "shift_timestamp", {"timestamp": stamp, **shift})
        arguments = {"reminder_id": row["reminder_id"], "reminder_timestamp": stamp}
        yield from act(mind, "modify_reminder", arguments)
        return "The reminder is changed."

    request = d.pick(
        "postpone", f"postpone my reminder to {errand} by {said}",
        f"move the reminder to {errand} {said} later", f"delay the reminder to {errand} by {said}",
        f"push my reminder to {errand} back {said}",
    )  # fmt: skip
    return Part(
        request, program, (*REMINDER_TOOLS, *TIME_TOOLS), "modify_reminder",
        reminders=[reminder_row(d, errand)],
        wrong=("modify_reminder", "add_reminder"),
    )  # fmt: skip


def remove_reminder(d: Draw) -> Part:
    errand = d.pool.errand(d.rng)

    def program(mind: Mind) -> Program:
        need(mind, "remove_reminder")
        row = yield from _find_reminder(mind, errand)
        yield from act(mind, "remove_reminder", {"reminder_id": row["reminder_id"]})
        return "The reminder is removed."

    request = d.pick(
        "remove_reminder", f"remove my reminder to {errand}", f"delete the reminder to {errand}",
        f"cancel my reminder to {errand}", f"drop the reminder to {errand}",
    )  # fmt: skip
    return Part(
        request, program, (*REMINDER_TOOLS, *TIME_TOOLS), "remove_reminder",
        reminders=[reminder_row(d, errand)],
    )  # fmt: skip


def units(d: Draw, missing: bool = False) -> Part:
    amount = d.rng.randrange(2, 100)
    source, target = d.rng.choice(UNITS)

    def program(mind: Mind) -> Program:
        need(mind, "unit_conversion")
        unit = target
        if missing:
            unit = (yield Say("Which unit should I use?")) if mind.can(ASK) else "yard"
        value = yield from act(
            mind, "unit_conversion", {"amount": amount, "from_unit": source, "to_unit": unit}
        )
        return f"That is {value} {unit}."

    if missing:
        request = d.pick(
            "units_no_target", f"convert {amount} {source} to another unit",
            f"express {amount} {source} differently", f"convert {amount} {source}",
            f"change {amount} {source} into something else",
        )  # fmt: skip
    else:
        request = d.pick(
            "units", f"convert {amount} {source} to {target}",
            f"tell me what {amount} {source} is in {target}",
            f"express {amount} {source} in {target}", f"turn {amount} {source} into {target}",
        )  # fmt: skip
    answers = [{"keywords": ["unit"], "reply": target}] if missing else []
    return Part(
        request, program, LOOKUP_TOOLS, "unit_conversion", answers=answers,
    )  # fmt: skip


def stock(d: Draw, currency: bool = False, off: bool = False) -> Part:
    """A stock price, in dollars or converted; `off`: wifi is off."""
    symbol, code = d.pool.ticker(d.rng), d.rng.choice(CURRENCIES)

    def program(mind: Mind) -> Program:
        need(mind, "search_stock")
        found = yield from act(mind, "search_stock", {"query": symbol})
        if found is None:
            raise Abort("Sorry, I found nothing.")
        price, unit = found["price"], "USD"
        if currency and mind.can(CONVERT):
            arguments = {"amount": price, "from_currency_code": unit, "to_currency_code": code}
            price = yield from act(mind, "convert_currency", arguments)
            unit = code
        return f"The price is {price} {unit}."

    tail = f" in {code}" if currency else ""
    request = d.pick(
        "stock_in" if currency else "stock", f"tell me the price of {symbol} stock{tail}",
        f"look up the {symbol} stock price{tail}", f"find what {symbol} trades at{tail}",
        f"check the {symbol} share price{tail}",
    )  # fmt: skip
    return Part(
        request, program, LOOKUP_TOOLS, "search_stock", {"wifi": not off},
    )  # fmt: skip


def currency(d: Draw, off: bool = False) -> Part:
    amount, (source, target) = d.rng.randrange(2, 500), d.rng.sample((*CURRENCIES, "USD"), 2)

    def program(mind: Mind) -> Program:
        need(mind, "convert_currency")
        arguments = {"amount": amount, "from_currency_code": source, "to_currency_code": target}
        value = yield from act(mind, "convert_currency", arguments)
        return f"That is {value} {target}."

    request = d.pick(
        "currency", f"convert {amount} {source} to {target}",
        f"exchange {amount} {source} to {target}",
        f"tell me what {amount} {source} is in {target}", f"work out {amount} {source} in {target}",
    )  # fmt: skip
    return Part(
        request, program, LOOKUP_TOOLS, "convert_currency", {"wifi": not off},
    )  # fmt: skip


def weather(d: Draw, fahrenheit: bool = False, off: str = "") -> Part:
    """The weather here, today or in some days. `off`: "wifi" or "location" is off."""
    days = d.rng.randrange(0, 4)

    def program(mind: Mind) -> Program:
        need(mind, "search_weather_around_lat_lon")
        found = yield from act(mind, "search_weather_around_lat_lon", {"days": days})
        value, unit = found["temperature"], "celsius"
        if fahrenheit and mind.can(CONVERT):
            arguments = {"amount": value, "from_unit": "celsius", "to_unit": "fahrenheit"}
            value = yield from act(mind, "unit_conversion", arguments)
            unit = "fahrenheit"
        return f"It will be {value} {unit}."

    when = ("today", "tomorrow", "in 2 days", "in 3 days")[days]
    tail = " in fahrenheit" if fahrenheit else ""
    request = d.pick(
        "weather_f" if fahrenheit else "weather", f"tell me the temperature {when}{tail}",
        f"look up how warm it is {when}{tail}", f"check the temperature {when}{tail}",
        f"find the temperature here {when}{tail}",
    )  # fmt: skip
    return Part(
        request, program, (*PLACE_TOOLS, "unit_conversion"), "search_weather_around_lat_lon",
        {"wifi": off != "wifi", "location_service": off != "location"},
    )  # fmt: skip


def where_am_i(d: Draw, off: str = "") -> Part:
    def program(mind: Mind) -> Program:
        need(mind, "get_current_location", "search_lat_lon")
        place = yield from act(mind, "get_current_location", {})
        arguments = {"latitude": place["latitude"], "longitude": place["longitude"]}
        address = yield from act(mind, "search_lat_lon", arguments)
        return f"You are at {address}."

    request = d.pick(
        "where", "tell me where I am", "find my address", "look up my current address",
        "say where I am now",
    )  # fmt: skip
    return Part(
        request, program, PLACE_TOOLS, "search_lat_lon",
        {"wifi": off != "wifi", "location_service": off != "location"},
    )  # fmt: skip


def place_near(d: Draw, off: str = "") -> Part:
    kind = d.rng.choice(PLACES)

    def program(mind: Mind) -> Program:
        need(mind, "search_location_around_lat_lon")
        found = yield from act(mind, "search_location_around_lat_lon", {"location": kind})
        return f"Go to {found[0]['name']}."

    request = d.pick(
        "near", f"find a {kind} near me", f"look for a {kind} around here",
        f"tell me the nearest {kind}", f"find the closest {kind}",
    )  # fmt: skip
    return Part(
        request, program, PLACE_TOOLS, "search_location_around_lat_lon",
        {"wifi": off != "wifi", "location_service": off != "location"},
    )  # fmt: skip


def holiday(d: Draw, off: bool = False) -> Part:
    name, year = d.rng.choice(HOLIDAYS), d.rng.randrange(2025, 2031)

    def program(mind: Mind) -> Program:
        need(mind, "search_holiday")
        stamp = yield from act(mind, "search_holiday", {"holiday_name": name, "year": year})
        info = yield from act(mind, "timestamp_to_datetime_info", {"timestamp": stamp})
        return f"It is on {info['month']}/{info['day']}/{info['year']}."

    request = d.pick(
        "holiday", f"tell me when {name} is in {year}", f"look up the date of {name} {year}",
        f"find when {name} {year} is", f"check which day {name} {year} is",
    )  # fmt: skip
    return Part(
        request, program, ("search_holiday", *TIME_TOOLS, *SETTERS), "search_holiday",
        {"wifi": not off},
    )  # fmt: skip


def duration(d: Draw) -> Part:
    seconds = d.rng.randrange(100, 20000)

    def program(mind: Mind) -> Program:
        need(mind, "seconds_to_hours_minutes_seconds")
        parts = yield from act(mind, "seconds_to_hours_minutes_seconds", {"seconds": seconds})
        text = f"{parts['hour']} hours {parts['minute']} minutes {parts['second']} seconds"
        return f"That is {text}."

    request = d.pick(
        "duration", f"convert {seconds} seconds to hours", f"tell me how long {seconds} seconds is",
        f"express {seconds} seconds in hours and minutes", f"break down {seconds} seconds",
    )  # fmt: skip
    tools = ("seconds_to_hours_minutes_seconds", "unit_conversion", "timestamp_diff")
    return Part(request, program, tools, "seconds_to_hours_minutes_seconds")


def time_until(d: Draw) -> Part:
    """How long until a date: two timestamps and their difference."""
    when = moment(d)
    date = f"{when.month}/{when.day}/{when.year} at {when.hour}:{when.minute:02d}"

    def program(mind: Mind) -> Program:
        need(mind, "timestamp_diff")
        if mind.can(DECLINE):
            need(mind, "get_current_timestamp", "datetime_info_to_timestamp")
        now = then = 1800000000
        if "get_current_timestamp" in mind.tools:
            now = yield from act(mind, "get_current_timestamp", {})
        if "datetime_info_to_timestamp" in mind.tools:
            then = yield from act(
                mind, "datetime_info_to_timestamp",
                {"year": when.year, "month": when.month, "day": when.day, "hour": when.hour,
                 "minute": when.minute, "second": 0},
            )  # fmt: skip
        gap = yield from act(mind, "timestamp_diff", {"timestamp_0": now, "timestamp_1": then})
        return f"It is {gap['days']} days away."

    request = d.pick(
        "until", f"tell me how many days until {date}", f"count the days until {date}",
        f"find how far away {date} is", f"say how many days are left until {date}",
    )  # fmt: skip
    return Part(request, program, (*TIME_TOOLS, "timestamp_diff"), "timestamp_diff")
