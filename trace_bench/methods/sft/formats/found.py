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


def wrong(where: str, field: str, value: object, needed: str) -> UserError:
    """The error for a field that does not hold what its format says."""
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
    return UserError(
        f"{where}, field {field}: {shown}; needed is {needed}. Correct or remove it, or change "
        "`method.data`."
    )


def need(owner: Mapping[str, Any], name: str, kind: type[T], where: str, field: str) -> T:
    """The field `name` of `owner`, which must be of a kind. `field` is the owner's own place."""
    value = owner.get(name)
    if not isinstance(value, kind):
        raise wrong(where, f"{field}.{name}".strip("."), value, f"a {kind.__name__}")
    return value


def objects(owner: Mapping[str, Any], name: str, where: str, field: str) -> list[dict[str, Any]]:
    """The list of objects in a field; none if the field is missing or null."""
    if owner.get(name) is None:
        return []
    value = need(owner, name, list, where, field)
    for place, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong(where, f"{field}.{name}[{place}]".strip("."), item, "an object")
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """An object that may be missing."""
    return value if isinstance(value, dict) else {}


def text(value: Any, where: str, field: str) -> str:
    """A message's content: a text, nothing, or a list of parts that are texts."""
    if value is None or isinstance(value, str):
        return value or ""
    parts = value if isinstance(value, list) else [value]
    for place, part in enumerate(parts):
        if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
            raise wrong(where, f"{field}[{place}]", part, "a text, or parts that are texts")
    return "".join(part["text"] for part in parts)


def call(identity: str, name: str, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """A tool call of a message."""
    own = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return call_json(identity, name, own)
