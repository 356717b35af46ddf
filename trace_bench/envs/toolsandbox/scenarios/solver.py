"""Solvers: how a request is solved by a script.

A solution is a generator. It yields what to do next, a `Call` of a tool or a `Say` to the user, and
receives what comes back: a tool's result, a `Fault`, or the user's reply. The same solutions give
the reference trajectories and, by solvers that lack some capabilities, the flawed demonstrations
that the tiny agent learns its habits from.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.capabilities import ASK, RECOVER

DECLINED = "Sorry, I can't do that."
FAILED = "Sorry, that did not work."


@dataclass(frozen=True)
class Call:
    """A tool call. `milestone`: calling it is itself part of the task (a check before acting)."""

    name: str
    arguments: dict[str, Any]
    milestone: bool = False


@dataclass(frozen=True)
class Say:
    """A message to the user; `milestone`: the task rewards a message in about these words."""

    text: str
    milestone: bool = False


@dataclass(frozen=True)
class Begin:
    """Not an action: the work on the next request begins here."""


@dataclass(frozen=True)
class Fault:
    """A tool's error as the agent sees it."""

    kind: str
    message: str


class Redraw(Exception):
    """The random choices turned out to mean something else (two people whom a search cannot tell
    apart): the scenario has to be drawn again."""


class GiveUp(Exception):
    """The solver gives a request up; the text is what it tells the user instead."""


Solution = Generator[Call | Say | Begin, Any, str]
"""Solves one request or a whole conversation; returns the report to the user."""
Steps = Generator[Call | Say | Begin, Any, Any]
"""Part of a solution; returns what the rest goes on with."""


@dataclass(frozen=True)
class Solver:
    """The tools that a solution may call and the capabilities that it has to do without.

    `asked` collects the capabilities that made a difference so far or could have made one: a
    solver that lacks any other takes the same steps."""

    tools: frozenset[str]
    lacks: frozenset[str] = frozenset()
    asked: set[str] = field(default_factory=set, compare=False)

    def can(self, capability: str) -> bool:
        self.asked.add(capability)
        return capability not in self.lacks

    def need(self, *tools: str) -> None:
        """Gives up when a tool is missing for which no call could be invented."""
        if any(tool not in self.tools for tool in tools):
            raise GiveUp(DECLINED)


# What an error's text asks for: a tool and its argument `on`. The texts are those of the tools.
_REMEDIES: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "Cellular service is off": ("set_cellular_service_status", True),
        "Wifi is off": ("set_wifi_status", True),
        "Location service is off": ("set_location_service_status", True),
        "Low battery mode is on": ("set_low_battery_mode_status", False),
    }
)


def call_tool(solver: Solver, name: str, arguments: dict[str, Any]) -> Steps:
    """The tool's result. An error whose cause is a setting is answered by changing that setting
    and calling again."""
    for _ in range(3):
        result = yield Call(name, arguments)
        if not isinstance(result, Fault):
            return result
        if result.message not in _REMEDIES:
            raise GiveUp(FAILED)
        tool, on = _REMEDIES[result.message]
        if tool not in solver.tools or not solver.can(RECOVER):
            raise GiveUp(f"Sorry, {result.message[0].lower()}{result.message[1:]}.")
        yield from call_tool(solver, tool, {"on": on})
    raise GiveUp(FAILED)


def ask_user(solver: Solver, question: str, guess: str) -> Steps:
    """What the user answers; a solver that does not ask goes on with a guess."""
    return (yield Say(question)) if solver.can(ASK) else guess
