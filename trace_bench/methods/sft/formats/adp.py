"""Trajectories of the Agent Data Protocol (arXiv 2510.24702, neulab/agent-data-protocol).

A trajectory has an `id` and a `content` list of actions and observations that alternate; each item
names its kind in `class_`. Read here: `text_observation` (`source` "user" is the user, anything
else a tool's result), `message_action` and `api_action` (`function`, `kwargs`). Code, web pages and
images are refused, since no agent of this project acts by them. The protocol's collections are of
many worlds, so their tools need not be the suite's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.chat import text_message
from trace_bench.core.errors import UserError
from trace_bench.core.types import Message, Tool
from trace_bench.methods.sft.formats.found import Dialogue, call

Conversation = tuple[Sequence[Message], Sequence[Tool]]
KINDS = ("text_observation", "message_action", "api_action")


def read(data: Any, where: str) -> Dialogue:
    """A line of a file."""
    messages, tools = conversation(data, where)
    return Dialogue(where, tuple(messages), tools=tuple(tools), general=True)


def conversation(data: Any, where: str) -> Conversation:
    """One trajectory as messages and tools. A tool's parameters are those that calls of it use."""
    if not isinstance(data, Mapping) or not isinstance(data.get("content"), list):
        raise UserError(f"{where} has no list `content`; see `method.data`.")
    messages: list[Message] = []
    tools: dict[str, dict[str, Any]] = {}
    for place, item in enumerate(data["content"]):
        kind = item.get("class_") if isinstance(item, Mapping) else None
        if kind == "text_observation":
            messages.append(_observed(item))
        elif kind == "message_action":
            messages.append(text_message(str(item.get("content", ""))))
        elif kind == "api_action" and isinstance(item.get("kwargs", {}), Mapping):
            _call(messages, item, place)
            known = tools.setdefault(str(item["function"]), {})
            known.update({name: {} for name in item.get("kwargs", {})})
        else:
            raise UserError(
                f"{where}, item {place}: class_ {kind!r}; allowed: {', '.join(KINDS)}. Leave such "
                "trajectories out of `method.data`."
            )
    if not any(m["role"] == "assistant" for m in messages) or messages[0]["role"] == "assistant":
        raise UserError(f"{where}: needed is an observation and then an action; see `method.data`.")
    return messages, [_tool(name, properties) for name, properties in tools.items()]


def _observed(item: Mapping[str, Any]) -> Message:
    content = str(item.get("content", ""))
    if item.get("source") == "user":
        return {"role": "user", "content": content}
    call_id = str(item.get("tool_call_id") or "")
    return {"role": "tool", "tool_call_id": call_id, "name": str(item.get("name") or ""),
            "content": content}  # fmt: skip


def _call(messages: list[Message], item: Mapping[str, Any], place: int) -> None:
    """A call joins the message just before it, as one turn of the agent."""
    identity = str(item.get("tool_call_id") or f"call_{place}")
    made = call(identity, str(item["function"]), dict(item.get("kwargs", {})))
    if messages and messages[-1]["role"] == "assistant":
        last = messages[-1]
        messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), made]}
    else:
        messages.append(text_message("", [made]))


def _tool(name: str, properties: Mapping[str, Any]) -> Tool:
    parameters = {"type": "object", "properties": dict(properties), "required": []}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
