"""Requests about the device's settings, and requests under a condition on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.capabilities import CHECK
from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.requests.request import Kind, Request
from trace_bench.envs.toolsandbox.scenarios.solver import Call, GiveUp, Solution, Solver, call_tool

SETTING_TOOLS = (
    "get_wifi_status",
    "get_cellular_service_status",
    "get_location_service_status",
    "get_low_battery_mode_status",
    "set_wifi_status",
    "set_cellular_service_status",
    "set_location_service_status",
    "set_low_battery_mode_status",
)
SETTERS = SETTING_TOOLS[4:]


@dataclass(frozen=True)
class Switch:
    """A setting that is on or off: `name` in its tools' names, `title` in the assistant's reports,
    `column` of the database."""

    name: str
    title: str
    column: str

    @property
    def words(self) -> str:
        """What the user calls it."""
        return self.name.replace("_", " ")

    def report(self, on: bool) -> str:
        return f"{self.title} is {'on' if on else 'off'}"


SWITCHES: Mapping[str, Switch] = MappingProxyType(
    {
        "wifi": Switch("wifi", "Wifi", "wifi"),
        "cellular": Switch("cellular_service", "Cellular service", "cellular"),
        "location": Switch("location_service", "Location service", "location_service"),
        "low_battery": Switch("low_battery_mode", "Low battery mode", "low_battery_mode"),
    }
)


def set_status(
    choices: Choices, which: str, on: bool | None = None, blocked: bool = False
) -> Request:
    """Switch a setting. `on`: to which state (None: drawn); `blocked`: low battery mode forbids it
    first."""
    switch, on = SWITCHES[which], choices.coin() if on is None else on
    tool, words = f"set_{switch.name}_status", switch.words

    def solution(solver: Solver) -> Solution:
        solver.need(tool)
        yield from call_tool(solver, tool, {"on": on})
        return f"{switch.report(on)}."

    settings: dict[str, Any] = {switch.column: not on}
    if blocked:
        settings["low_battery_mode"] = True
    state, verb = ("on", "enable") if on else ("off", "disable")
    clause = choices.clause(
        "set", f"turn {state} {words}", f"switch {state} {words}", f"turn {words} {state}",
        f"{verb} {words}", f"switch {words} {state}",
    )  # fmt: skip
    return Request(clause, solution, SETTING_TOOLS, tool, settings)


def get_status(choices: Choices, which: str, on: bool | None = None) -> Request:
    """Tell whether a setting is on. `on`: whether it is (None: drawn)."""
    switch, on = SWITCHES[which], choices.coin() if on is None else on
    tool, words = f"get_{switch.name}_status", switch.words

    def solution(solver: Solver) -> Solution:
        solver.need(tool)
        value = yield from call_tool(solver, tool, {})
        return f"{switch.report(value)}."

    clause = choices.clause(
        "status", f"tell me if {words} is on", f"check if {words} is on",
        f"check whether {words} is enabled", f"look up the {words} status",
    )  # fmt: skip
    return Request(clause, solution, SETTING_TOOLS, tool, {switch.column: on})


def conditional(choices: Choices, kind: Kind, which: str, holds: bool | None = None) -> Request:
    """A request under a condition on a setting, which has to be looked up first. `holds`: whether
    the condition is met (None: drawn)."""
    switch, request = SWITCHES[which], kind(choices)
    holds = choices.coin() if holds is None else holds
    wanted = choices.coin()
    actual = wanted if holds else not wanted

    def solution(solver: Solver) -> Solution:
        if solver.can(CHECK):
            value = yield Call(f"get_{switch.name}_status", {}, milestone=True)
            if value is not wanted:
                raise GiveUp(f"{switch.report(value)}, so I did not do it.")
        return (yield from request.solution(solver))

    state = "on" if wanted else "off"
    clause = choices.clause(
        "if", f"if {switch.words} is {state}, {request.clause}",
        f"only if {switch.words} is {state}, {request.clause}",
    )  # fmt: skip
    return Request(
        clause,
        solution,
        (*request.tools, *(t for t in SETTING_TOOLS if t not in request.tools)),
        request.main_tool,
        {switch.column: actual, **request.settings},
        request.contacts,
        request.messages,
        request.reminders,
        request.answers,
        request.invented_tools,
    )
