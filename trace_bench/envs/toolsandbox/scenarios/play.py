"""Plays a solving program in the real environment and writes down what happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.types import Message, Step, Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios.program import (
    Begin,
    Call,
    Fault,
    Mind,
    Part,
    Say,
    solve,
)

# The columns of a changed row that the task is about; ids and clocks of new rows are not.
_ADDED = {
    "CONTACT": ("name", "phone_number"),
    "MESSAGING": ("recipient_phone_number", "content"),
    "REMINDER": ("content", "reminder_timestamp"),
}
_KEY = {"CONTACT": "person_id", "MESSAGING": "message_id", "REMINDER": "reminder_id"}


@dataclass(frozen=True)
class Event:
    """Something that the task is about. `chained`: it belongs to the same request as the event
    before it; `text`: it is the message that closes a user turn."""

    constraint: dict[str, Any]
    chained: bool
    text: bool = False


@dataclass
class Record:
    """What a program did: actions in the form of `Task.data["reference"]`, the steps that came
    back, and the events that became milestones."""

    actions: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    first: Step = field(default_factory=Step)
    last: Step = field(default_factory=Step)


def assistant(action: dict[str, Any], index: int, shown: Callable[[str], str]) -> Message:
    """An action of a reference trajectory as the agent's message; `shown` gives the name under
    which the agent knows a tool."""
    if "say" in action:
        return {"role": "assistant", "content": action["say"]}
    call = {"name": shown(action["call"]), "arguments": json.dumps(action["arguments"])}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call_{index}", "type": "function", "function": call}],
    }


def _result(content: str) -> Any:
    """A tool message's content as the program sees it."""
    try:
        return json.loads(content)
    except ValueError:
        kind, _, message = content.partition(": ")
        return Fault(kind, message)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """The constraints that a change of the databases fulfils."""
    found = []
    for database, rows in after.items():
        old = before[database]
        if rows == old:
            continue
        if database == "SETTING":
            changed = {c: v for c, v in rows[0].items() if old[0][c] != v}
            found.append({"database": database, "kind": "snapshot", "rows": [changed]})
            continue
        key = _KEY[database]
        was, now = {r[key]: r for r in old}, {r[key]: r for r in rows}
        for identity, row in now.items():
            if identity not in was:
                columns = {c: row[c] for c in _ADDED[database]}
                found.append({"database": database, "kind": "added", "rows": [columns]})
            elif row != was[identity]:
                columns = {key: identity, **{c: row[c] for c in _ADDED[database]}}
                found.append({"database": database, "kind": "updated", "rows": [columns]})
        for identity in was:
            if identity not in now:
                found.append({"database": database, "kind": "removed", "rows": [{key: identity}]})
    return [{**constraint, "since": None} for constraint in found]


def play(env: ToolSandboxEnv, task: Task, turns: list[list[Part]], mind: Mind) -> Record:
    """Run the solving program against the environment until the conversation ends."""
    record = Record()
    step = record.first = env.reset(task)
    program = solve(turns, mind)
    value: Any = None
    chained = False
    while not step.done:
        try:
            intent = program.send(value)
        except StopIteration:
            break
        value = None
        if isinstance(intent, Begin):
            chained = False
            continue
        before = env.world.state
        if isinstance(intent, Call):
            action = {"call": intent.name, "arguments": intent.arguments}
        else:
            action = {"say": intent.text}
        message = assistant(action, len(record.actions), env.shown_name)
        record.actions.append(action)
        record.messages.append(message)
        step = env.step(message)
        record.messages.extend(step.messages)
        if step.messages:
            value = step.messages[-1]["content"]
        events = _changes(before, env.world.state)
        if isinstance(intent, Call):
            value = _result(value)
            if intent.milestone:
                row = {"name": intent.name, "arguments": intent.arguments}
                events.append(
                    {"database": "SANDBOX", "kind": "tool_trace", "rows": [row], "since": None}
                )
        for constraint in events:
            record.events.append(Event(constraint, chained))
            chained = True
        if isinstance(intent, Say) and intent.milestone:
            row = {"sender": "AGENT", "recipient": "USER", "content": intent.text}
            said = {"database": "SANDBOX", "kind": "snapshot", "rows": [row], "since": None}
            closing = "?" not in intent.text
            record.events.append(Event(said, chained, closing))
            chained = not closing
    record.last = step
    return record
