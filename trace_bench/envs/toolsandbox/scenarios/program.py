"""How a scenario is solved: small generator programs that act and receive what comes back.

A program yields `Call` or `Say` and receives a tool's result, a `Fault`, or the user's reply. The
same programs give the reference trajectories and, with some capabilities taken away (`lacks`), the
flawed demonstrations that the tiny agent learns its habits from.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

CAPABILITIES = (
    "recovers_from_errors",
    "checks_preconditions",
    "asks_when_information_is_missing",
    "disambiguates",
    "completes_all_parts",
    "takes_exact_arguments_from_results",
    "converts_values",
    "declines_when_impossible",
    "tells_the_user",
)
RECOVER, CHECK, ASK, DISAMBIGUATE, COMPLETE, EXACT, CONVERT, DECLINE, TELL = CAPABILITIES

DECLINED = "Sorry, I can't do that."


@dataclass(frozen=True)
class Call:
    """A tool call. `milestone`: calling it is itself part of the task (a check before acting)."""

    name: str
    arguments: dict[str, Any]
    milestone: bool = False


@dataclass(frozen=True)
class Say:
    """A message to the user; `milestone`: it must be said in about these words."""

    text: str
    milestone: bool = False


@dataclass(frozen=True)
class Fault:
    """A tool's error as the agent sees it."""

    kind: str
    message: str


@dataclass(frozen=True)
class Mind:
    """What the acting program can do: the tools it has and the capabilities it lacks."""

    tools: frozenset[str]
    lacks: frozenset[str] = frozenset()

    def can(self, capability: str) -> bool:
        return capability not in self.lacks


@dataclass(frozen=True)
class Begin:
    """Marks where the work on the next request begins; nothing is done."""


class Redraw(Exception):
    """The draw turned out to mean something else (two people that a search cannot tell apart)."""


class Abort(Exception):
    """The program gives the request up and says why."""


Program = Generator[Call | Say | Begin, Any, str]
Work = Generator[Call | Say | Begin, Any, Any]

# What an error's text asks for. The texts are those of the tools.
_REMEDY: dict[str, tuple[str, bool]] = {
    "Cellular service is off": ("set_cellular_service_status", True),
    "Wifi is off": ("set_wifi_status", True),
    "Location service is off": ("set_location_service_status", True),
    "Low battery mode is on": ("set_low_battery_mode_status", False),
}


def act(mind: Mind, name: str, arguments: dict[str, Any]) -> Work:
    """Call a tool; when it fails for a reason that a setting can mend, mend it and try again."""
    for _ in range(3):
        result = yield Call(name, arguments)
        if not isinstance(result, Fault):
            return result
        if result.message not in _REMEDY:
            raise Abort("Sorry, that did not work.")
        tool, on = _REMEDY[result.message]
        if not mind.can(RECOVER) or tool not in mind.tools:
            raise Abort(f"Sorry, {result.message[0].lower()}{result.message[1:]}.")
        yield from act(mind, tool, {"on": on})
    raise Abort("Sorry, that did not work.")


@dataclass
class Part:
    """One request of a scenario: how it is said, solved, and what it needs of the world."""

    request: str
    program: Any  # Callable[[Mind], Program]
    tools: tuple[str, ...]
    main: str  # the tool whose call is the request's effect
    settings: dict[str, Any] = field(default_factory=dict)
    contacts: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    reminders: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    wrong: tuple[str, ...] = ()  # tools that only a made-up act would call; default: main


def solve(parts: list[list[Part]], mind: Mind) -> Program:
    """The whole conversation: `parts` holds the requests of every user turn."""
    text = ""
    for requests in parts:
        reports: list[str] = []
        try:
            for index, part in enumerate(requests):
                if index and not mind.can(COMPLETE):
                    break
                yield Begin()
                reports.append((yield from part.program(mind)))
            text = " ".join(reports)
        except Abort as abort:
            text = " ".join([*reports, str(abort)])
        yield Say(text if mind.can(TELL) else "Done.", milestone=True)
    return text
