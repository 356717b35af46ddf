"""Conversations in OpenAI's chat format, one JSON object a line: `messages`, and `tools` if the
line says which were offered. An assistant's message with `weight` 0 is not learned, as in OpenAI's
fine-tuning. The older `function_call` is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.core.types import ROLES, Message
from trace_bench.methods.sft.formats.found import Dialogue, call, need, objects, text, wrong

_NAMES = {"developer": "system"}


def is_one(data: Mapping[str, Any]) -> bool:
    return "messages" in data


def read(data: Mapping[str, Any], where: str) -> Dialogue:
    """A line. Raises UserError naming the field that is wrong."""
    need(data, "messages", list, where, "")
    names: dict[str, str] = {}
    given = objects(data, "messages", where, "")
    messages = [_message(m, names, where, f"messages[{n}]") for n, m in enumerate(given)]
    tools = tuple(objects(data, "tools", where, "")) or None
    skipped = frozenset(n for n, m in enumerate(given) if not _weight(m, where, f"messages[{n}]"))
    return Dialogue(where, tuple(messages), tools=tools, skipped=skipped)


def _weight(message: Mapping[str, Any], where: str, field: str) -> int:
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise wrong(where, f"{field}.weight", weight, "0 or 1")
    return int(weight)


def _message(message: Mapping[str, Any], names: dict[str, str], where: str, field: str) -> Message:
    role = _NAMES.get(str(message.get("role")), message.get("role"))
    if role not in ROLES:
        raise wrong(where, f"{field}.role", role, ", ".join(ROLES))
    if "function_call" in message:
        raise wrong(where, f"{field}.function_call", message["function_call"], "`tool_calls`")
    out: Message = {
        "role": role,
        "content": text(message.get("content"), where, f"{field}.content"),
    }
    if role == "tool":
        answered = need(message, "tool_call_id", str, where, field)
        out |= {"tool_call_id": answered, "name": message.get("name") or names.get(answered, "")}
    for n, made in enumerate(objects(message, "tool_calls", where, field)):
        own = f"{field}.tool_calls[{n}]"
        function = need(made, "function", dict, where, own)
        name = need(function, "name", str, where, f"{own}.function")
        arguments = need(function, "arguments", str, where, f"{own}.function")
        identity = need(made, "id", str, where, own)
        names[identity] = name
        out.setdefault("tool_calls", []).append(call(identity, name, arguments))
    return out
