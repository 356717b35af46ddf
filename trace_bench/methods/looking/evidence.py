"""What a program can see of a conversation: calls with their results, texts, and where values came
from. Total: any list of messages gives a `Conversation`, however absurd the agent's replies are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.types import Message

_ERROR = re.compile(r"^(?:[A-Za-z_.]*(?:Error|Exception))\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DEPTH = 8  # nested deeper than this, a value is not looked into


@dataclass(frozen=True)
class Call:
    """A tool call of the agent, with its result. `at` is its place among all events."""

    name: str
    arguments: dict[str, Any]
    at: int
    readable: bool = True
    result: Any = None  # parsed JSON, or the raw text
    error: str | None = None
    answered: bool = False


@dataclass(frozen=True)
class Text:
    """Something said, by the agent or the user."""

    text: str
    at: int


@dataclass(frozen=True)
class Conversation:
    """A conversation taken apart; all lists in order."""

    calls: tuple[Call, ...] = ()
    said: tuple[Text, ...] = ()  # the agent's texts
    heard: tuple[Text, ...] = ()  # the user's texts
    ends_with_text: bool = False  # the agent's last reply was a text without calls

    def before(self, at: int) -> Conversation:
        """Only what happened before place `at`."""
        return Conversation(
            tuple(c for c in self.calls if c.at < at),
            tuple(t for t in self.said if t.at < at),
            tuple(t for t in self.heard if t.at < at),
        )

    @property
    def good(self) -> tuple[Call, ...]:
        """Calls that came back without an error."""
        return tuple(c for c in self.calls if c.error is None and c.answered)

    @property
    def questions(self) -> tuple[Text, ...]:
        return tuple(t for t in self.said if "?" in t.text)

    def stuck(self) -> bool:
        """Some call failed and no later call of the same tool succeeded."""
        return any(
            c.error is not None and not any(g.name == c.name and g.at > c.at for g in self.good)
            for c in self.calls
        )


@dataclass
class _Reader:
    """Collects events; `open` are calls that wait for their result, by id."""

    calls: list[Call] = field(default_factory=list)
    said: list[Text] = field(default_factory=list)
    heard: list[Text] = field(default_factory=list)
    waiting: list[tuple[object, int]] = field(default_factory=list)
    at: int = 0
    ends_with_text: bool = False

    def assistant(self, message: Message) -> None:
        text, calls = message.get("content"), message.get("tool_calls")
        if isinstance(text, str) and text.strip():
            self.said.append(Text(text, self.tick()))
        calls = calls if isinstance(calls, list | tuple) else []
        self.ends_with_text = not calls and isinstance(text, str) and bool(text.strip())
        self.waiting = []
        for call in calls:
            name, arguments, readable = _call(call)
            self.waiting.append((_get(call, "id"), len(self.calls)))
            self.calls.append(Call(name, arguments, self.tick(), readable))

    def tool(self, message: Message) -> None:
        if not self.waiting:
            return
        wanted = message.get("tool_call_id")
        spot = next((i for i, (key, _) in enumerate(self.waiting) if key == wanted), 0)
        _, index = self.waiting.pop(spot)
        call, content = self.calls[index], message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, default=str)
        result = _parse(text)
        # Also {"error": "..."}, as many tools report one.
        failed = bool(_ERROR.match(text)) or (isinstance(result, dict) and [*result] == ["error"])
        self.calls[index] = Call(
            call.name, call.arguments, call.at, call.readable,
            None if failed else result, text if failed else None, True,
        )  # fmt: skip

    def tick(self) -> int:
        self.at += 1
        return self.at


def read(messages: Sequence[Message]) -> Conversation:
    """Takes a conversation (OpenAI chat messages) apart. Never raises."""
    reader = _Reader()
    for message in messages:
        role = _get(message, "role")
        if role == "assistant":
            reader.assistant(message)
        elif role == "tool":
            reader.tool(message)
        elif role == "user":
            reader.heard.append(Text(str(message.get("content") or ""), reader.tick()))
    return Conversation(
        tuple(reader.calls), tuple(reader.said), tuple(reader.heard), reader.ends_with_text
    )


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _call(call: Any) -> tuple[str, dict[str, Any], bool]:
    """Name, arguments and whether the call could be read."""
    function = _get(call, "function")
    name, arguments = _get(function, "name"), _get(function, "arguments")
    if isinstance(arguments, str):
        arguments = _parse(arguments)
    readable = isinstance(name, str) and bool(name) and isinstance(arguments, dict)
    return (
        name if isinstance(name, str) else "",
        {str(k): v for k, v in arguments.items()} if isinstance(arguments, dict) else {},
        readable,
    )


def _parse(text: str) -> Any:
    """JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def atoms(value: Any, depth: int = 0) -> Iterator[str | float]:
    """The strings and numbers inside a JSON value; booleans and nulls carry no identity."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = as_number(value)
        if number is not None:
            yield number
    elif depth < _DEPTH and isinstance(value, dict):
        for inner in value.values():
            yield from atoms(inner, depth + 1)
    elif depth < _DEPTH and isinstance(value, list | tuple):
        for inner in value:
            yield from atoms(inner, depth + 1)


def as_number(value: Any) -> float | None:
    """A finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def same(a: Any, b: Any) -> bool:
    """Equal as argument values: numbers within rounding, texts apart from outer blanks."""
    x, y = as_number(a), as_number(b)
    if x is not None and y is not None:
        return abs(x - y) <= 1e-6 * max(1.0, abs(x), abs(y))
    if isinstance(a, str) and isinstance(b, str):
        return a.strip() == b.strip()
    return type(a) is type(b) and bool(a == b)


def in_texts(value: Any, texts: Sequence[Text]) -> bool:
    """Whether the value stands in one of the texts: a number as a number ("05" is 5), a string
    word for word."""
    number = as_number(value)
    if number is not None:
        return any(same(float(m), number) for t in texts for m in _NUMBER.findall(t.text)[:200])
    return isinstance(value, str) and any(value.casefold() in t.text.casefold() for t in texts)


def in_results(value: Any, calls: Sequence[Call]) -> bool:
    """Whether one of the calls returned this very value (anywhere inside its result)."""
    return any(same(atom, value) for c in calls if c.error is None for atom in atoms(c.result))


def precise(value: Any) -> bool:
    """Values that have to be taken over exactly: numbers but 0 and 1, and words with digits."""
    number = as_number(value)
    if number is not None:
        return number not in (0.0, 1.0)
    return isinstance(value, str) and len(value.split()) == 1 and any(c.isdigit() for c in value)


def records(call: Call) -> list[dict[str, Any]]:
    """The records of a search result: a list of objects, else none."""
    if isinstance(call.result, list):
        return [row for row in call.result if isinstance(row, dict)]
    return []
