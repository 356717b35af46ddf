"""Tools with a web service behind them, answered from the frozen data that ships with the package.

City positions are real; places, prices, rates and weather are invented for the tasks.
"""

from __future__ import annotations

import json
import math
import zlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from importlib import resources
from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, ToolFault
from trace_bench.envs.toolsandbox.tools import spec
from trace_bench.envs.toolsandbox.tools.records import current_location, require_wifi
from trace_bench.envs.toolsandbox.tools.spec import optional, required, similarity, tidy, tool
from trace_bench.envs.toolsandbox.tools.utilities import distance_km

_tool = partial(tool, "search")
_HERE = (
    optional("latitude", "number", "latitude, here if left out", spec.LATITUDES, nullable=True),
    optional("longitude", "number", "longitude, here if left out", spec.LONGITUDES, nullable=True),
)
_REACH_KM = 200.0  # farther than this from every city there is no address
_CONDITIONS = ("Sunny", "Cloudy", "Rain", "Wind", "Fog")


@lru_cache(maxsize=8)
def data(name: str) -> Any:
    """Frozen data: cities, clauses, currencies, places, stocks or words. Not to be changed."""
    folder = resources.files("trace_bench.envs.toolsandbox") / "data"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def _mix(*parts: object) -> int:
    """A stable pseudo-random number from plain values."""
    return zlib.crc32("|".join(map(str, parts)).encode())


@lru_cache(maxsize=1024)
def nearest_city(latitude: float, longitude: float) -> tuple[dict[str, Any], float]:
    """The nearest city of the data set and its distance in km."""

    def distance(city: dict[str, Any]) -> float:
        return distance_km(latitude, longitude, city["latitude"], city["longitude"])

    nearest = min(data("cities"), key=distance)
    return nearest, distance(nearest)


def _address(number: int, city: str) -> str:
    streets = data("places")["streets"]
    return f"{1 + number % 98} {streets[number // 98 % len(streets)]}, {city}"


def _point(
    world: Databases, latitude: float | None = None, longitude: float | None = None
) -> tuple[float, float]:
    if latitude is None or longitude is None:
        return current_location(world)
    return latitude, longitude


@_tool(
    "Address of a point. Needs wifi.",
    required("latitude", "number", "latitude", spec.LATITUDES),
    required("longitude", "number", "longitude", spec.LONGITUDES),
)
def search_lat_lon(world: Databases, latitude: float, longitude: float) -> str | None:
    require_wifi(world)
    city, distance = nearest_city(latitude, longitude)
    if distance > _REACH_KM:
        return None
    return _address(_mix(round(latitude, 3), round(longitude, 3)), city["name"])


@_tool(
    "Places near a point by name or kind. Needs wifi.",
    required("location", "string", "name or kind of place, such as pharmacy"),
    *_HERE,
)
def search_location_around_lat_lon(
    world: Databases, location: str, **point: float | None
) -> list[dict[str, Any]]:
    require_wifi(world)
    return [dict(place) for place in _find_places(location, *_point(world, **point))]


@lru_cache(maxsize=1024)
def _find_places(location: str, latitude: float, longitude: float) -> tuple[dict[str, Any], ...]:
    for city in data("cities"):
        if city["name"].lower() == location.strip().lower():
            return ({key: city[key] for key in ("name", "latitude", "longitude")},)
    matches = []
    for kind, names in data("places")["kinds"].items():
        for name in names:
            likeness = max(similarity(location, kind), similarity(location, name))
            if likeness >= 80:
                matches.append((likeness, name))
    best = sorted(matches, key=lambda entry: entry[0], reverse=True)[:2]
    city, distance = nearest_city(latitude, longitude)
    if distance > _REACH_KM:
        return ()
    return tuple(
        {"name": name, "address": _address(_mix(name, city["name"]), city["name"])}
        for _, name in best
    )


@_tool(
    "Weather near a point, today or some days ahead. Needs wifi.",
    optional("days", "integer", "days from today, 0 to 14", (0, 14)),
    *_HERE,
)
def search_weather_around_lat_lon(
    world: Databases, days: int = 0, **point: float | None
) -> dict[str, Any]:
    require_wifi(world)
    city, _ = nearest_city(*_point(world, **point))
    day = datetime.fromtimestamp(world.now, UTC) + timedelta(days=days)
    ordinal, year_day = day.toordinal(), day.timetuple().tm_yday
    number = _mix("weather", city["name"], ordinal)
    # Colder towards the poles and in the hemisphere's winter, then some noise of the day.
    season = -math.cos((year_day - 20) / 365.25 * 2 * math.pi) * math.copysign(1, city["latitude"])
    mean = 28 - 0.35 * abs(city["latitude"]) + 0.2 * abs(city["latitude"]) * season
    temperature = round(mean + (number % 101 - 50) / 10, 1)
    condition = _CONDITIONS[number // 101 % len(_CONDITIONS)]
    if condition == "Rain" and temperature <= 0:
        condition = "Snow"
    return {"condition": condition, "temperature": tidy(temperature, 1), "unit": "celsius"}


@_tool(
    "Price in US dollars of a stock by company or symbol. Needs wifi.",
    required("query", "string", "company name or ticker symbol"),
)
def search_stock(world: Databases, query: str) -> dict[str, Any] | None:
    require_wifi(world)
    stock = _find_stock(query)
    return None if stock is None else dict(stock)


@lru_cache(maxsize=1024)
def _find_stock(query: str) -> dict[str, Any] | None:
    stocks = data("stocks")
    for stock in stocks:
        if stock["symbol"] == query.strip().upper():
            return dict(stock)
    best = max(stocks, key=lambda stock: similarity(query, stock["name"]))
    return dict(best) if similarity(query, best["name"]) >= 80 else None


@_tool(
    "Convert an amount of money. Needs wifi.",
    required("amount", "number", "amount in the first currency"),
    required("from_currency_code", "string", "code of the currency given, such as USD"),
    required("to_currency_code", "string", "code of the currency wanted, such as EUR"),
)
def convert_currency(
    world: Databases, amount: float, from_currency_code: str, to_currency_code: str
) -> float:
    require_wifi(world)
    rates = data("currencies")
    try:
        source, target = rates[from_currency_code.upper()], rates[to_currency_code.upper()]
    except KeyError:
        raise ToolFault("ValueError", "Unknown currency code") from None
    return tidy(amount / source * target)


TOOLS = (
    search_lat_lon, search_location_around_lat_lon, search_weather_around_lat_lon, search_stock,
    convert_currency,
)  # fmt: skip
