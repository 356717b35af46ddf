"""What every format is read into, and how a wrong field is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trace_bench.core.chat import call_json
from trace_bench.core.errors import UserError
from trace_bench.core.types import Message, Tool

T = TypeVar("T")


@dataclass(frozen=True)
class Dialogue:
    """A conversation of a file. `where`: file, and line or sample. `tools`: as the file defines
    them; `offered`: their names, where it has only those; None: the file says nothing of either.
    `task`: of which it is an episode; `success`: how that was scored. `unusable`: why it cannot be
    imitated. `general`: its tools need not be the suite's. `skipped`: the places of the agent's
    messages that are not learned."""

    where: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] | None = None
    offered: tuple[str, ...] | None = None
    task: str | None = None
    success: bool | None = None
    unusable: str | None = None
    general: bool = False
    skipped: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Part:
    """A JSON object: `where` it was read, and the `field` that holds it ("": none)."""

    data: Mapping[str, Any]
    where: str
    field: str = ""

    def wrong(self, name: str, value: object, needed: str) -> UserError:
        """The error for a field that does not hold what its format says."""
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
        return UserError(
            f"{self.where}, field {self.path(name)}: {shown}; needed is {needed}. Correct or "
            "remove it, or change `method.data`."
        )

    def path(self, name: str) -> str:
        return f"{self.field}.{name}".strip(".")

    def need(self, name: str, kind: type[T]) -> T:
        """A field that must be of a kind."""
        value = self.data.get(name)
        if not isinstance(value, kind):
            raise self.wrong(name, value, f"a {kind.__name__}")
        return value

    def part(self, name: str) -> Part:
        return Part(self.need(name, dict), self.where, self.path(name))

    def parts(self, name: str) -> list[Part]:
        """The list of objects in a field; none if the field is missing or null."""
        listed = [] if self.data.get(name) is None else self.need(name, list)
        for place, item in enumerate(listed):
            if not isinstance(item, dict):
                raise self.wrong(f"{name}[{place}]", item, "an object")
        return [Part(item, self.where, self.path(f"{name}[{n}]")) for n, item in enumerate(listed)]

    def tools(self, name: str) -> tuple[Tool, ...]:
        return tuple(dict(part.data) for part in self.parts(name))

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object that may be missing."""
        return mapping(self.data.get(name))

    def text(self, name: str) -> str:
        """A message's content: a text, nothing, or a list of parts that are texts."""
        value = self.data.get(name)
        if value is None or isinstance(value, str):
            return value or ""
        parts = value if isinstance(value, list) else [value]
        for n, part in enumerate(parts):
            if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
                raise self.wrong(f"{name}[{n}]", part, "a text, or parts that are texts")
        return "".join(part["text"] for part in parts)

    def call(self, identity: str, name: str) -> dict[str, Any]:
        """The tool call that it is, with these fields."""
        arguments = self.need("arguments", dict)
        return call(self.need(identity, str), self.need(name, str), arguments)


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def call(identity: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call of a message."""
    return call_json(identity, name, json.dumps(arguments, ensure_ascii=False))
