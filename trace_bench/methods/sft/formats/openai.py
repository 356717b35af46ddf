"""Conversations in OpenAI's chat format, one JSON object a line: `messages`, and `tools` if the
line says which were offered. The older `function_call` is refused."""

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
    messages = [
        _message(message, names, where, f"messages[{n}]")
        for n, message in enumerate(objects(data, "messages", where, ""))
    ]
    return Dialogue(where, tuple(messages), tools=tuple(objects(data, "tools", where, "")) or None)


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
