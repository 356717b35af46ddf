"""Requests, the capabilities that they may need, how a script solves them, and playing a solution
in the real environment, where what happened is recorded.

A solution is a generator. It yields what to do next, a `ToolUse` or a `Say` to the user, and
receives what comes back: a tool's result, a `Fault`, or the user's reply. It yields None where the
work on the next request begins. The same solutions give the reference trajectories and, by solvers
that lack some capabilities, the flawed demonstrations that the tiny agent learns its habits from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.types import Message, Step, Task
from trace_bench.envs.toolsandbox.databases import KEYS, Snapshot
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.pools import Choices

# The nine capabilities that a task may need. A method finds out which of them an agent lacks, and
# trains it on synthetic tasks for one of them.
CAPABILITIES = (
    "recovers_from_errors", "checks_preconditions", "asks_when_information_is_missing",
    "disambiguates", "completes_all_parts", "takes_exact_arguments_from_results",
    "converts_values", "declines_when_impossible", "tells_the_user",
)  # fmt: skip
RECOVER, CHECK, ASK, DISAMBIGUATE, COMPLETE, EXACT, CONVERT, DECLINE, TELL = CAPABILITIES

FAILED = "Sorry, that did not work."
REFUSED = "Sorry, I can't do that."


@dataclass(frozen=True)
class ToolUse:
    """A tool call. `milestone`: calling it is itself part of the task (a check before acting)."""

    name: str
    arguments: dict[str, Any]
    milestone: bool = False

    @property
    def action(self) -> dict[str, Any]:
        """In the form of `Task.data["reference"]`."""
        return {"call": self.name, "arguments": self.arguments}

    def constraint(self) -> dict[str, Any]:
        row = {"name": self.name, "arguments": self.arguments}
        return _constraint_on("SANDBOX", "tool_trace", row)


@dataclass(frozen=True)
class Say:
    """A message to the user; `milestone`: the task rewards a message in about these words."""

    text: str
    milestone: bool = False

    @property
    def action(self) -> dict[str, Any]:
        return {"say": self.text}

    def constraint(self) -> dict[str, Any]:
        """That the agent tells the user the text."""
        row = {"sender": "AGENT", "recipient": "USER", "content": self.text}
        return _constraint_on("SANDBOX", "snapshot", row)


@dataclass(frozen=True)
class Fault:
    """A tool's error as the agent sees it."""

    kind: str
    message: str


class Redraw(Exception):
    """The random choices turned out to mean something else (two people whom a search cannot tell
    apart): the scenario has to be drawn again."""


class GiveUp(Exception):
    """The solver gives a request up; the text is what it tells the user instead of `REFUSED`."""


# What an error's text asks for: a tool and its argument `on`. The texts are those of the tools.
_REMEDIES: Mapping[str, tuple[str, bool]] = {
    "Cellular service is off": ("set_cellular_service_status", True),
    "Wifi is off": ("set_wifi_status", True),
    "Location service is off": ("set_location_service_status", True),
    "Low battery mode is on": ("set_low_battery_mode_status", False),
}

Solution = Generator[ToolUse | Say | None, Any, str]
"""Solves one request or a whole conversation; returns the report to the user."""
Steps = Generator[ToolUse | Say | None, Any, Any]
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

    def need(self, tool: str) -> None:
        """Gives up when a tool is missing for which no call could be invented."""
        if tool not in self.tools:
            raise GiveUp

    def has(self, tool: str) -> bool:
        """Whether a tool is there whose result could be invented. A solver that declines gives up
        without it; False for one that invents."""
        if tool not in self.tools and self.can(DECLINE):
            raise GiveUp
        return tool in self.tools

    def call(self, tool: str, /, **arguments: Any) -> Steps:
        """The tool's result. An error whose cause is a setting is answered by changing that setting
        and calling again."""
        for _ in range(3):
            result = yield ToolUse(tool, arguments)
            if not isinstance(result, Fault):
                return result
            if result.message not in _REMEDIES:
                raise GiveUp(FAILED)
            remedy, on = _REMEDIES[result.message]
            if remedy not in self.tools or not self.can(RECOVER):
                raise GiveUp(f"Sorry, {result.message[0].lower()}{result.message[1:]}.")
            yield from self.call(remedy, on=on)
        raise GiveUp(FAILED)

    def ask(self, question: str, guess: str) -> Steps:
        """What the user answers; a solver that does not ask goes on with a guess."""
        return (yield Say(question)) if self.can(ASK) else guess


def answer(reply: str, *keywords: str) -> list[dict[str, Any]]:
    """The user's answer to a question with one of the words in it, see `ScriptedUser`."""
    return [{"keywords": [*keywords], "reply": reply}]


@dataclass
class Request:
    """How a request is worded and solved, and what it needs of the world.

    clause: its part of the user's message. solution: solves it, given a solver. tools: those that
    the agent gets for it. main_tool: the one whose call is the request's effect. settings,
    contacts, messages, reminders: what the phone has to hold at the start, without the time when
    it was written, which the scenario knows. answers: the user's, to questions (see
    `ScriptedUser`). invented_tools: what only a solver that invents its arguments
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
                yield None
                solver.need(request.main_tool)
                reports.append((yield from request.solution(solver)))
            text = " ".join(reports)
        except GiveUp as reason:
            text = " ".join([*reports, str(reason) or REFUSED])
        yield Say(text if solver.can(TELL) else "Done.", milestone=True)
    return text


# The columns of a changed row that the task is about; ids and clocks of new rows are not.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "CONTACT": ("name", "phone_number"),
    "MESSAGING": ("recipient_phone_number", "content"),
    "REMINDER": ("content", "reminder_timestamp"),
}


@dataclass(frozen=True)
class Event:
    """Something that the task may reward, as a constraint on the databases or the messages.
    `chained`: it belongs to the same request as the event before it; `closes_turn`: it is the
    message that reports on a user turn."""

    constraint: dict[str, Any]
    chained: bool
    closes_turn: bool = False


@dataclass
class Playback:
    """One episode of a solver. first, last: the environment's steps. actions: in the form of
    `Task.data["reference"]`. messages: the agent's and what came back. events: in order."""

    first: Step
    last: Step
    actions: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def assistant(action: dict[str, Any], index: int, name_of: Callable[[str], str]) -> Message:
    """An action of a reference trajectory as the agent's message; `name_of` gives the name under
    which the agent knows a tool."""
    if "say" in action:
        return text_message(action["say"])
    return call_message(name_of(action["call"]), action["arguments"], f"call_{index}")


def play(env: ToolSandboxEnv, task: Task, turns: Turns, solver: Solver) -> Playback:
    """Runs the solution of the requests against the environment until the conversation ends."""
    step = env.reset(task)
    record, solution = Playback(step, step), solve(turns, solver)
    answer: Any = None
    chained = False
    while not step.done:
        try:
            intent = solution.send(answer)
        except StopIteration:
            break
        if intent is None:
            answer, chained = None, False
            continue
        before = env.world.state
        message = assistant(intent.action, len(record.actions), env.shown_name)
        step = env.step(message)
        record.actions.append(intent.action)
        record.messages += [message, *step.messages]
        answer = step.messages[-1]["content"] if step.messages else None
        constraints = _changes(before, env.world.state)
        if intent.milestone:
            constraints.append(intent.constraint())
        closes = isinstance(intent, Say) and intent.milestone and "?" not in intent.text
        for constraint in constraints:
            record.events.append(Event(constraint, chained, closes))
            chained = not closes
        if isinstance(intent, ToolUse):
            answer = _result(answer)
    record.last = step
    return record


def milestone_of(constraint: dict[str, Any]) -> dict[str, Any]:
    """A milestone, or a minefield, as a task has it, of one constraint."""
    return {"constraints": [constraint], "guards": []}


def _constraint_on(database: str, kind: str, row: dict[str, Any]) -> dict[str, Any]:
    """A constraint as a task has it, see `goals.Constraint`."""
    return {"database": database, "kind": kind, "rows": [row], "since": None}


def _result(content: str) -> Any:
    """A tool message's content as the solution sees it."""
    try:
        return json.loads(content)
    except ValueError:
        kind, _, message = content.partition(": ")
        return Fault(kind, message)


def _changes(before: Snapshot, after: Snapshot) -> list[dict[str, Any]]:
    """The constraints that a change of the databases fulfils."""
    constraints: list[dict[str, Any]] = []
    for database, rows in after.items():
        old = before[database]
        if rows is old or rows == old:
            continue
        if database == "SETTING":
            changed = {c: v for c, v in rows[0].items() if old[0][c] != v}
            constraints.append(_constraint_on(database, "snapshot", changed))
            continue
        key, columns = KEYS[database], _COLUMNS[database]
        was, now = {r[key]: r for r in old}, {r[key]: r for r in rows}
        for identity, row in now.items():
            target = {c: row[c] for c in columns}
            if identity not in was:
                constraints.append(_constraint_on(database, "added", target))
            elif row != was[identity]:
                constraints.append(_constraint_on(database, "updated", {key: identity, **target}))
        gone = [identity for identity in was if identity not in now]
        constraints += [_constraint_on(database, "removed", {key: identity}) for identity in gone]
    return constraints
