"""A conversation as turns of the user and steps of the agent, and when two calls are equal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.chat import read_call
from trace_bench.core.decode import Limits, fault_of
from trace_bench.core.text import apart
from trace_bench.core.types import Message

ARGUMENTS = Limits(size=100_000, depth=16, items=10_000)  # of one call
_ERROR = re.compile(r"\s*(?:\w{1,60}(?:Error|Exception|Fault)|Error|error)\b\s*:")


@dataclass(frozen=True)
class ToolCall:
    """A tool call whose arguments could be read."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def key(self) -> str:
        """One text per call: names and arguments that mean the same are equal."""
        body = json.dumps(plain(self.arguments), sort_keys=True, ensure_ascii=True)
        return f"{self.name}({body})"


@dataclass(frozen=True)
class AgentStep:
    """One message of the agent, and its results. `calls`: None in the place of one that cannot
    be read; `results`: the answers, in the order of the calls. `malformed`: a call of it does not
    fit its tool's schema or cannot be read."""

    message: Message
    calls: tuple[ToolCall | None, ...] = ()
    results: tuple[str, ...] = ()
    malformed: bool = False

    @property
    def reply(self) -> str:
        """What the user reads: nothing if the step has calls."""
        return "" if self.message.get("tool_calls") else visible(text_of(self.message))


@dataclass(frozen=True)
class UserTurn:
    """A message of the user, and the agent's steps until the next one."""

    user: Message
    steps: tuple[AgentStep, ...] = ()


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def visible(text: str) -> str:
    """A text of the agent without its thinking."""
    return apart(text)[1].strip()


def turns_of(messages: Sequence[Message]) -> tuple[list[Message], list[UserTurn]]:
    """(the messages before the user's first, such as the system's, and the turns)."""
    opening: list[Message] = []
    turns: list[UserTurn] = []
    for message in messages:
        role = message.get("role")
        if role == "user":
            turns.append(UserTurn(message))
        elif not turns:
            opening.append(message)
        elif role == "assistant":
            turns[-1] = UserTurn(turns[-1].user, (*turns[-1].steps, step_of(message)))
        elif role == "tool" and turns[-1].steps:
            *before, last = turns[-1].steps
            answered = AgentStep(last.message, last.calls, (*last.results, text_of(message)))
            turns[-1] = UserTurn(turns[-1].user, (*before, answered))
    return opening, turns


def call_of(raw: Any) -> ToolCall:
    """A call as a message has it. Raises ValueError, in words that the agent may read, for one that
    cannot be read or has more arguments than ARGUMENTS allows."""
    name, arguments = read_call(raw)
    if fault := fault_of(arguments, ARGUMENTS):
        raise ValueError(fault)
    return ToolCall(name, arguments)


def step_of(message: Message, results: Sequence[str] = (), malformed: bool = False) -> AgentStep:
    """A step from the agent's message."""
    calls: list[ToolCall | None] = []
    for raw in message.get("tool_calls") or ():
        try:
            calls.append(call_of(raw))
        except ValueError:
            calls.append(None)
    return AgentStep(message, tuple(calls), tuple(results), malformed or None in calls)


def plain(value: Any) -> Any:
    """A JSON value in which 1.0 and 1 are the same."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def is_error(result: str) -> bool:
    """Whether a tool's answer reports an error: "ValueError: ...", or an object with an error."""
    if _ERROR.match(result):
        return True
    if not result.lstrip().startswith("{"):
        return False
    try:
        data = json.loads(result)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and bool(data.get("error"))
