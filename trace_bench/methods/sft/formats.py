"""Demonstrations of others: the lines of `method.data`, each a conversation in OpenAI's chat format
or that of the Agent Data Protocol, told apart by what is in it.

A line in OpenAI's format has `messages`, and `tools` if it says which were offered. An assistant's
message with `weight` 0 is not learned, as in OpenAI's fine-tuning. The older `function_call` is
refused.

A trajectory of the Agent Data Protocol (arXiv 2510.24702, neulab/agent-data-protocol) has a list
`content` of actions and observations that alternate; each item names its kind in `class_`. Read
here: `text_observation` (`source` "user" is the user, anything else a tool's result),
`message_action` and `api_action` (`function`, `kwargs`). Code, web pages and images are refused,
since no agent of this project acts by them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.chat import call_json, text_message
from trace_bench.core.decode import Limits, Unreadable, decode
from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines
from trace_bench.core.types import Message, Tool

LONGEST = 64 * 2**20  # bytes of a conversation


@dataclass(frozen=True)
class Dialogue:
    """A conversation of a file. `where`: file and line. `tools`: as the file defines them; None: it
    says nothing of them. `learned`: of each of the agent's messages."""

    where: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] | None
    learned: tuple[bool, ...]


def read(place: Path) -> Iterator[Dialogue]:
    """The conversations of a file, or of all files in a folder and below it, by name. Raises
    UserError naming file, line and field of what is not in its format."""
    files = [place]
    if place.is_dir():
        files = sorted(path for path in place.rglob("*.jsonl") if path.is_file())
        if not files:
            raise UserError(
                f"method.data={place} holds no file that ends in .jsonl. Change `method.data`."
            )
    fix = "Change `method.data`."
    for path in files:
        try:
            for number, line in bounded_lines(path, LONGEST, fix):
                yield read_line(line, f"{path}, line {number}")
        except FileNotFoundError as error:
            raise UserError(f"{path} cannot be read ({error}). {fix}") from error


def read_line(text: bytes, where: str) -> Dialogue:
    """The conversation of a line; `where` it stands is named in its errors, all UserErrors."""
    try:
        line = decode(text, _Line, Limits(LONGEST))
    except Unreadable as error:
        fix = "Correct or remove it, or change `method.data`."
        raise UserError(f"{where}: {error}. {fix}") from error
    if line.messages is not None:
        return _openai(line.messages, line.tools, where)
    if line.content is not None:
        return _adp(line.content, where)
    raise UserError(
        f"{where} has neither `messages` (OpenAI's chat format) nor `content` (the Agent Data "
        "Protocol's). Change `method.data`."
    )


# -- what a line holds ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Text:
    text: str


@dataclass(frozen=True)
class _Function:
    name: str
    arguments: str


@dataclass(frozen=True)
class _Call:
    id: str
    function: _Function


@dataclass(frozen=True)
class _Message:
    """One of OpenAI's chat format."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[_Text, ...] | None = None
    tool_calls: tuple[_Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    weight: Literal[0, 1] = 1
    function_call: None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())


@dataclass(frozen=True)
class _Item:
    """An action or an observation of the Agent Data Protocol."""

    class_: Literal["text_observation", "message_action", "api_action"]
    content: str | None = None
    source: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    function: str | None = None
    kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Line:
    messages: tuple[_Message, ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    content: tuple[_Item, ...] | None = None


# -- as conversations -----------------------------------------------------------------------------


def _openai(messages: Sequence[_Message], tools: tuple[Tool, ...] | None, where: str) -> Dialogue:
    called: dict[str, str] = {}  # the tools' names by the ids of their calls
    out: list[Message] = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        plain: Message = {"role": role, "content": message.text}
        if role == "tool":
            answered = message.tool_call_id or ""
            name = message.name or called.get(answered, "")
            plain |= {"tool_call_id": answered, "name": name}
        if message.tool_calls:
            calls = [call_json(c.id, c.function.name, c.function.arguments)
                     for c in message.tool_calls]  # fmt: skip
            plain["tool_calls"] = calls
            called |= {c.id: c.function.name for c in message.tool_calls}
        out.append(plain)
    learned = tuple(bool(message.weight) for message in messages if message.role == "assistant")
    return Dialogue(where, tuple(out), tools or None, learned)


def _adp(items: Sequence[_Item], where: str) -> Dialogue:
    """A trajectory. A tool's parameters are those that calls of it use."""
    messages: list[Message] = []
    tools: dict[str, dict[str, Any]] = {}
    for place, item in enumerate(items):
        if item.class_ == "text_observation":
            messages.append(_observed(item))
        elif item.class_ == "message_action":
            messages.append(text_message(item.content or ""))
        elif item.function is None:
            raise UserError(
                f"{where}, item {place}: an api_action without `function`. Correct or remove it, "
                "or change `method.data`."
            )
        else:
            arguments = item.kwargs or {}
            text = json.dumps(arguments, ensure_ascii=False)
            call = call_json(item.tool_call_id or f"call_{place}", item.function, text)
            _add_call(messages, call)
            tools.setdefault(item.function, {}).update({key: {} for key in arguments})
    offered = tuple(_tool(name, properties) for name, properties in tools.items())
    learned = (True,) * sum(m["role"] == "assistant" for m in messages)
    return Dialogue(where, tuple(messages), offered, learned)


def _observed(item: _Item) -> Message:
    content = item.content or ""
    if item.source == "user":
        return {"role": "user", "content": content}
    answered, name = item.tool_call_id or "", item.name or ""
    return {"role": "tool", "tool_call_id": answered, "name": name, "content": content}


def _add_call(messages: list[Message], call: dict[str, Any]) -> None:
    """A call joins the message just before it, as one turn of the agent."""
    if messages and messages[-1]["role"] == "assistant":
        last = messages[-1]
        messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), call]}
    else:
        messages.append(text_message("", [call]))


def _tool(name: str, properties: Mapping[str, Any]) -> Tool:
    parameters = {"type": "object", "properties": dict(properties), "required": []}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
