"""What a model writes, read: thoughts, content and tool calls.

Every model writes thoughts as <think>...</think>, before what it says. Calls are written in one of
several formats, a file each; which one a model has learned is found by rendering a known call with
its own chat template (`policies.chat`).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trace_bench.core.chat import call_json, read_call, text_message
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import Message, Tool

CALL = Limits(2**20)  # of the text of one tool call
THINK, THOUGHT = "<think>", "</think>"


class Malformed(ValueError):
    """Why a tool call cannot be parsed."""


@dataclass(frozen=True)
class Reply:
    """An assistant's turn. The message has content and calls, which are what others see; `thoughts`
    are for readers of logs. `malformed`: why a tool call could not be parsed (None: no error); the
    message then keeps its text as content."""

    message: Message
    thoughts: str = ""
    malformed: str | None = None


class Format(ABC):
    """How a model writes tool calls. `begin`: the text with which they begin. `around`: the texts
    around the JSON of a call, with the key of its arguments, for a turn that is held to a call;
    None where a call is no JSON."""

    begin: ClassVar[str]
    around: ClassVar[tuple[tuple[str, ...], tuple[str, ...], str] | None] = None

    @abstractmethod
    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[dict[str, Any]]]:
        """(content, the calls in it as {"name": ..., "arguments": {...}}). Raises Malformed."""

    def prepared(self, message: Message) -> Message:
        """The message as templates of this format take it: arguments as objects."""
        if not message.get("tool_calls"):
            return message
        return {**message, "tool_calls": [self._given(call) for call in message["tool_calls"]]}

    def _given(self, call: Mapping[str, Any]) -> dict[str, Any]:
        try:
            name, arguments = read_call(call)
        except ValueError:  # of a conversation that another program has written
            return dict(call)
        return {**call, "function": {"name": name, "arguments": arguments}}

    def before(self, text: str) -> str:
        """The text before the first call, of a text that still grows."""
        return cut(text, self.begin)


def cut(text: str, mark: str) -> str:
    """The text before a mark, also where it ends in the mark's beginning."""
    text = text.partition(mark)[0]
    begun = next(n for n in range(len(mark), -1, -1) if text.endswith(mark[:n]))
    return text[: len(text) - begun]


def read_reply(
    text: str, turn: int, how: Format, tools: Sequence[Tool] = (), opened: bool = False
) -> Reply:
    """The turn in a text. `opened`: the prompt ends inside a thought. What is in a thought is never
    a call; one that does not end leaves no content."""
    thoughts, said = apart(text, how.begin, opened)
    try:
        content, found = how.calls(said, tools)
    except Malformed as error:
        said = said.strip() if thoughts else said
        return Reply(text_message(said), thoughts, str(error))
    calls = [
        call_json(f"call_{turn}_{i}", c["name"], json.dumps(c["arguments"], ensure_ascii=False))
        for i, c in enumerate(found)
    ]
    return Reply(text_message(content.strip(), calls), thoughts)


def apart(text: str, begin: str, opened: bool = False) -> tuple[str, str]:
    """(thoughts, the rest). A mark of thoughts after the `begin` of a call belongs to the call."""
    thoughts: list[str] = []
    said: list[str] = []
    place, inside = 0, opened
    for mark in re.finditer(f"{THINK}|{THOUGHT}|{re.escape(begin)}", text):
        if inside and mark[0] == THOUGHT:
            thoughts.append(text[place : mark.start()])
        elif not inside and mark[0] == THINK:
            said.append(text[place : mark.start()])
        elif inside or mark[0] == THOUGHT:
            continue
        else:
            break
        place, inside = mark.end(), not inside
    (thoughts if inside else said).append(text[place:])
    return "\n".join(filter(None, map(str.strip, thoughts))), "".join(said)


def as_call(data: Any, arguments: str = "arguments") -> dict[str, Any]:
    """A call from its JSON, whose arguments have that key. Raises Malformed."""
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise Malformed('no string "name"')
    given = data.get(arguments, {})
    if not isinstance(given, dict):
        raise Malformed(f'"{arguments}" is not an object')
    return {"name": data["name"], "arguments": given}


def json_of(text: str) -> Any:
    """The value of a call's JSON. Raises Malformed."""
    try:
        return without_surrogates(read(text, CALL))
    except Unreadable as error:
        raise Malformed(f"not JSON: {error}") from None
