"""One request of a scenario, and how a conversation of several is solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trace_bench.envs.toolsandbox.scenarios.capabilities import COMPLETE, TELL
from trace_bench.envs.toolsandbox.scenarios.requests.choices import Choices
from trace_bench.envs.toolsandbox.scenarios.solver import Begin, GiveUp, Say, Solution, Solver


@dataclass
class Request:
    """How a request is worded and solved, and what it needs of the world.

    clause: its part of the user's message. solution: solves it, given a solver. tools: those that
    the agent gets for it. main_tool: the one whose call is the request's effect. settings,
    contacts, messages, reminders: what the phone has to hold at the start. answers: the user's, to
    questions (see `ScriptedUser`). invented_tools: what only a solver that invents its arguments
    would call where the request cannot be carried out; empty: main_tool."""

    clause: str
    solution: Callable[[Solver], Solution]
    tools: tuple[str, ...]
    main_tool: str
    settings: dict[str, Any] = field(default_factory=dict)
    contacts: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    reminders: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    invented_tools: tuple[str, ...] = ()


Kind = Callable[[Choices], Request]
"""A kind of request: draws one."""
Turns = list[list[Request]]
"""The requests of every message of the user."""


def solve(turns: Turns, solver: Solver) -> Solution:
    """Solves the requests of every turn in order and closes each turn with a report."""
    text = ""
    for requests in turns:
        reports: list[str] = []
        try:
            for index, request in enumerate(requests):
                if index and not solver.can(COMPLETE):
                    break
                yield Begin()
                reports.append((yield from request.solution(solver)))
            text = " ".join(reports)
        except GiveUp as reason:
            text = " ".join([*reports, str(reason)])
        yield Say(text if solver.can(TELL) else "Done.", milestone=True)
    return text
