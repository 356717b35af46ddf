"""Demonstrations of others: the lines of `method.data`, each a conversation in OpenAI's format.

A line has `messages`, and the `tools` that were offered. An assistant's message with `weight` 0 is
not learned, as in OpenAI's fine-tuning. The older `function_call` is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.chat import call_json
from trace_bench.core.decode import Limits, Unreadable, decode
from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines
from trace_bench.core.types import Message
from trace_bench.tiny.played import Demonstration

LONGEST = 64 * 2**20  # bytes of a conversation


def read(place: Path) -> Iterator[Demonstration]:
    """The conversations of a file, or of all files in a folder and below it, by name; `task` is
    file and line. Raises UserError naming file, line and field of what is not in its format."""
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


def read_line(text: bytes, where: str) -> Demonstration:
    """The conversation of a line; `where` it stands is named in its errors, all UserErrors."""
    try:
        return _dialogue(decode(text, _Line, Limits(LONGEST)), where)
    except Unreadable as error:
        fix = "Correct or remove it, or change `method.data`."
        raise UserError(f"{where}: {error}. {fix}") from error


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
class _Line:
    messages: tuple[_Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None


# -- as conversations -----------------------------------------------------------------------------


def _dialogue(line: _Line, where: str) -> Demonstration:
    called: dict[str, str] = {}  # the tools' names by the ids of their calls
    out: list[Message] = []
    for message in line.messages:
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
    for n, tool in enumerate(line.tools or ()):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Unreadable(f"`tools[{n}].function.name` is missing, or no text")
    learned = tuple(bool(m.weight) for m in line.messages if m.role == "assistant")
    return Demonstration(where, tuple(out), line.tools or (), learned)
