"""Requests that need a web service: stocks, currencies, weather, places."""

from __future__ import annotations

from trace_bench.envs.toolsandbox.scenarios.capabilities import CONVERT
from trace_bench.envs.toolsandbox.scenarios.pools import CURRENCIES
from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.requests.request import Request
from trace_bench.envs.toolsandbox.scenarios.requests.settings import SETTERS
from trace_bench.envs.toolsandbox.scenarios.requests.utilities import LOOKUP_TOOLS
from trace_bench.envs.toolsandbox.scenarios.solver import GiveUp, Solution, Solver, call_tool

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
