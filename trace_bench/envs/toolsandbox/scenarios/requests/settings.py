"""Requests about the device's settings, and requests under a condition on one of them."""

from __future__ import annotations

from dataclasses import replace

from trace_bench.envs.toolsandbox.scenarios.pools import Choices
from trace_bench.envs.toolsandbox.scenarios.solver import (
    CHECK,
    GiveUp,
    Kind,
    Request,
    Solution,
    Solver,
    ToolUse,
)
from trace_bench.envs.toolsandbox.tools.setting import SWITCHES

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
