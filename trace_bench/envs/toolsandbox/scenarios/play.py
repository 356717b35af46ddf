"""Plays a solution in the real environment and records what happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from trace_bench.core.chat import call_json
from trace_bench.core.types import Message, Step, Task
from trace_bench.envs.toolsandbox.databases import KEYS, Snapshot
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.solver import (
    Begin,
    Fault,
    Say,
    Solver,
    ToolUse,
    Turns,
    solve,
)

# The columns of a changed row that the task is about; ids and clocks of new rows are not.
_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CONTACT": ("name", "phone_number"),
        "MESSAGING": ("recipient_phone_number", "content"),
        "REMINDER": ("content", "reminder_timestamp"),
    }
)


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
    """One episode of a solver. actions: in the form of `Task.data["reference"]`. messages: the
    agent's and what came back. events: in order. first, last: the environment's steps."""

    actions: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    first: Step = field(default_factory=Step)
    last: Step = field(default_factory=Step)

    def note(self, constraints: list[dict[str, Any]], chained: bool) -> bool:
        """Appends an event for each constraint; whether the next one is chained."""
        for constraint in constraints:
            self.events.append(Event(constraint, chained))
            chained = True
        return chained


def assistant(action: dict[str, Any], index: int, shown: Callable[[str], str]) -> Message:
    """An action of a reference trajectory as the agent's message; `shown` gives the name under
    which the agent knows a tool."""
    if "say" in action:
        return {"role": "assistant", "content": action["say"]}
    call = call_json(f"call_{index}", shown(action["call"]), action["arguments"])
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def play(env: ToolSandboxEnv, task: Task, turns: Turns, solver: Solver) -> Playback:
    """Runs the solution of the requests against the environment until the conversation ends."""
    record = Playback()
    step = record.first = env.reset(task)
    solution = solve(turns, solver)
    answer: Any = None
    chained = False
    while not step.done:
        try:
            intent = solution.send(answer)
        except StopIteration:
            break
        answer = None
        if isinstance(intent, Begin):
            chained = False
            continue
        before = env.world.state
        step = _act(env, record, intent)
        if step.messages:
            answer = step.messages[-1]["content"]
        events = _changes(before, env.world.state)
        if isinstance(intent, Say):
            chained = record.note(events, chained)
            if intent.milestone:
                closes = "?" not in intent.text
                record.events.append(Event(message_constraint(intent.text), chained, closes))
                chained = not closes
            continue
        answer = _result(answer)
        if intent.milestone:
            row = {"name": intent.name, "arguments": intent.arguments}
            events.append(
                {"database": "SANDBOX", "kind": "tool_trace", "rows": [row], "since": None}
            )
        chained = record.note(events, chained)
    record.last = step
    return record


def _act(env: ToolSandboxEnv, record: Playback, intent: ToolUse | Say) -> Step:
    """One turn of the agent, recorded."""
    action: dict[str, Any]
    if isinstance(intent, ToolUse):
        action = {"call": intent.name, "arguments": intent.arguments}
    else:
        action = {"say": intent.text}
    message = assistant(action, len(record.actions), env.shown_name)
    record.actions.append(action)
    record.messages.append(message)
    step = env.step(message)
    record.messages.extend(step.messages)
    return step


def message_constraint(text: str) -> dict[str, Any]:
    """That the agent tells the user a text."""
    row = {"sender": "AGENT", "recipient": "USER", "content": text}
    return {"database": "SANDBOX", "kind": "snapshot", "rows": [row], "since": None}


def _result(content: str) -> Any:
    """A tool message's content as the solution sees it."""
    try:
        return json.loads(content)
    except ValueError:
        kind, _, message = content.partition(": ")
        return Fault(kind, message)


def _changes(before: Snapshot, after: Snapshot) -> list[dict[str, Any]]:
    """The constraints that a change of the databases fulfils."""
    found: list[dict[str, Any]] = []
    for database, rows in after.items():
        old = before[database]
        if rows is old or rows == old:
            continue
        if database == "SETTING":
            changed = {c: v for c, v in rows[0].items() if old[0][c] != v}
            found.append({"database": database, "kind": "snapshot", "rows": [changed]})
            continue
        key, columns = KEYS[database], _COLUMNS[database]
        was, now = {r[key]: r for r in old}, {r[key]: r for r in rows}
        for identity, row in now.items():
            target = {c: row[c] for c in columns}
            if identity not in was:
                found.append({"database": database, "kind": "added", "rows": [target]})
            elif row != was[identity]:
                target = {key: identity, **target}
                found.append({"database": database, "kind": "updated", "rows": [target]})
        for identity in was:
            if identity not in now:
                found.append({"database": database, "kind": "removed", "rows": [{key: identity}]})
    return [{**constraint, "since": None} for constraint in found]
