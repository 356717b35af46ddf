"""Tools that compute: time, units, distance, holidays. All times are UTC."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, ToolFault
from trace_bench.envs.toolsandbox.tools import spec
from trace_bench.envs.toolsandbox.tools.records import require_wifi
from trace_bench.envs.toolsandbox.tools.spec import optional, required, tidy, tool

_tool = partial(tool, "utilities")
_EARTH_RADIUS_KM = 6371.0088  # mean radius (IUGG)
_YEARS = (1980, 2049)
_SECONDS = {"weeks": 604800, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


@_tool("The time now as unix time.")
def get_current_timestamp(world: Databases) -> float:
    return tidy(world.now)


@_tool(
    "Year, month, day, hour, minute, second and weekday of a unix time.",
    required("timestamp", "number", "unix time", spec.TIMES),
)
def timestamp_to_datetime_info(world: Databases, timestamp: float) -> dict[str, int]:
    moment = datetime.fromtimestamp(timestamp, UTC)
    names = ("year", "month", "day", "hour", "minute", "second")
    return {**{name: getattr(moment, name) for name in names}, "isoweekday": moment.isoweekday()}


@_tool(
    "Unix time of a date and time of day.",
    required("year", "integer", "year", _YEARS),
    required("month", "integer", "month, 1 to 12", (1, 12)),
    required("day", "integer", "day of the month", (1, 31)),
    required("hour", "integer", "hour, 0 to 23", (0, 23)),
    required("minute", "integer", "minute, 0 to 59", (0, 59)),
    required("second", "integer", "second, 0 to 59", (0, 59)),
)
def datetime_info_to_timestamp(world: Databases, **parts: int) -> float:
    try:
        moment = datetime(**parts, tzinfo=UTC)
    except ValueError:
        raise ToolFault("ValueError", "Not a valid date") from None
    return tidy(moment.timestamp())


@_tool(
    "Move a unix time forwards or backwards.",
    required("timestamp", "number", "unix time", spec.TIMES),
    *(
        optional(name, "integer", f"{name} to add, negative to subtract", (-1e9, 1e9))
        for name in _SECONDS
    ),
)
def shift_timestamp(world: Databases, timestamp: float, **spans: int) -> float:
    shifted = timestamp + sum(_SECONDS[unit] * amount for unit, amount in spans.items())
    if not spec.TIMES[0] <= shifted <= spec.TIMES[1]:
        raise ToolFault("ValueError", "Result is out of range")
    return tidy(shifted)


@_tool(
    "timestamp_1 minus timestamp_0 in days and seconds.",
    required("timestamp_0", "number", "unix time to subtract", spec.TIMES),
    required("timestamp_1", "number", "unix time to subtract from", spec.TIMES),
)
def timestamp_diff(world: Databases, timestamp_0: float, timestamp_1: float) -> dict[str, int]:
    difference = timedelta(seconds=timestamp_1 - timestamp_0)
    return {"days": difference.days, "seconds": difference.seconds}


@_tool(
    "Split a number of seconds into hours, minutes and seconds.",
    required("seconds", "number", "number of seconds", (0, 1e9)),
)
def seconds_to_hours_minutes_seconds(world: Databases, seconds: float) -> dict[str, int]:
    minutes, second = divmod(int(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return {"hour": hour, "minute": minute, "second": second}


@lru_cache(maxsize=1)
def _unit_registry() -> Any:
    import pint

    return pint.UnitRegistry()


@lru_cache(maxsize=1024)
def _unit(text: str) -> Any:
    """The pint unit for a plain name, its spelling tried as given, in lower case and joined with
    underscores ("fluid ounce"). None if there is none. Names only, so that a unit text can never
    become a costly expression."""
    import pint

    plain = re.sub(r"^degrees? ", "", text.strip())
    if not re.fullmatch(r"[A-Za-z°µ_ ]{1,40}(/[A-Za-z_ ]{1,40})?(\^[23])?", plain):
        return None
    lower = plain.lower()
    for spelling in (plain, lower, lower.replace(" ", "_")):
        try:
            return _unit_registry().parse_units(spelling)
        except (pint.PintError, AttributeError, ValueError, TypeError):
            continue
    return None


@_tool(
    "Convert an amount from one unit to another.",
    required("amount", "number", "amount in from_unit"),
    required("from_unit", "string", "unit of the amount, such as mile"),
    required("to_unit", "string", "unit wanted, such as kilometer"),
)
def unit_conversion(world: Databases, amount: float, from_unit: str, to_unit: str) -> float:
    import pint

    source, target = _unit(from_unit), _unit(to_unit)
    if source is None or target is None:
        raise ToolFault("UndefinedUnitError", "Unknown unit")
    try:
        converted = _unit_registry().Quantity(float(amount), source).to(target).magnitude
    except pint.PintError:
        raise ToolFault("ValueError", "Units do not match") from None
    return tidy(converted)


@_tool(
    "Distance in kilometers between two points.",
    *(
        required(f"{axis}_{i}", "number", f"{axis} of the {which} point", bounds)
        for i, which in enumerate(("first", "second"))
        for axis, bounds in (("latitude", spec.LATITUDES), ("longitude", spec.LONGITUDES))
    ),
)
def calculate_lat_lon_distance(world: Databases, **points: float) -> float:
    return tidy(distance_km(**points))


def distance_km(
    latitude_0: float, longitude_0: float, latitude_1: float, longitude_1: float
) -> float:
    """Great-circle distance in kilometres of two points in degrees (haversine formula)."""
    phi_0, phi_1 = math.radians(latitude_0), math.radians(latitude_1)
    half_phi = (phi_1 - phi_0) / 2
    half_lambda = math.radians(longitude_1 - longitude_0) / 2
    h = math.sin(half_phi) ** 2 + math.cos(phi_0) * math.cos(phi_1) * math.sin(half_lambda) ** 2
    return 2 * _EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(h)))


@lru_cache(maxsize=256)
def _holidays(year: int) -> tuple[tuple[str, float], ...]:
    """Names of the US holidays of a year with their midnights in UTC."""
    import holidays

    days = holidays.country_holidays("US", years=year)
    return tuple(
        (name, datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        for day, name in sorted(days.items())
    )


@lru_cache(maxsize=1024)
def _find_holiday(wanted: str, year: int) -> float | None:
    from rapidfuzz import fuzz, utils

    # The shorter of two equally similar names is the day itself, not "… (observed)".
    score, _, moment = max(
        (fuzz.partial_ratio(wanted, name, processor=utils.default_process), -len(name), moment)
        for name, moment in _holidays(year)
    )
    return moment if score > 90 else None


@_tool(
    "Unix time of a US holiday, null if unknown. Needs wifi.",
    required("holiday_name", "string", "name of the holiday"),
    optional("year", "integer", "year, this year if left out", _YEARS, nullable=True),
)
def search_holiday(world: Databases, holiday_name: str, year: int | None = None) -> float | None:
    require_wifi(world)
    if year is None:
        year = datetime.fromtimestamp(world.now, UTC).year
    moment = _find_holiday(holiday_name, year)
    return None if moment is None else tidy(moment)


TOOLS = (
    get_current_timestamp, timestamp_to_datetime_info, datetime_info_to_timestamp, shift_timestamp,
    timestamp_diff, seconds_to_hours_minutes_seconds, unit_conversion, calculate_lat_lon_distance,
    search_holiday,
)  # fmt: skip
