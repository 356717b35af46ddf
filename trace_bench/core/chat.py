"""Helpers for your own environments: each writes or reads one message or tool of the OpenAI chat
format.

    make_tool("search_stock", "Look up a share.", query="string")
    name, arguments = read_call(call)      # of message["tool_calls"]; ValueError for a bad one
    answer_call(call, "204.97")            # the message that answers it
    make_call("search_stock", query="IBM") # an assistant message with one call
    ask_until(ask, "judge", ...)           # a model's answer, asked for until it can be read
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Ask
from trace_bench.core.types import Message, Tool, boundary_of

T = TypeVar("T")


def make_tool(name: str, description: str, /, **arguments: str | Mapping[str, Any]) -> Tool:
    """A tool's schema. Each argument is the name of its JSON type ("string", "number", "integer",
    "boolean", followed by "?" if the argument is optional) or its whole JSON schema."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument, kind in arguments.items():
        optional = isinstance(kind, str) and kind.endswith("?")
        schema = {"type": kind.rstrip("?")} if isinstance(kind, str) else dict(kind)
        properties[argument] = schema
        required += [] if optional else [argument]
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def make_call(name: str, /, **arguments: Any) -> Message:
    """An assistant message with one tool call, for instance for a reference trajectory."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [call_json("call_0", name, arguments)],
    }


def call_json(identity: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call as a message has it, with its id."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": identity, "type": "function", "function": function}


def read_call(call: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the agent's tool call. Raises ValueError if the call names no function
    or its arguments are not a JSON object; the error's text may be shown to the agent."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("the call names no function")
    text = function.get("arguments") or "{}"
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        raise ValueError("the arguments are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return function["name"], arguments


def answer_call(call: Any, content: str) -> Message:
    """The tool message that answers a call, well-formed or not."""
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else ""
    identity = str(call.get("id") or "call_0")
    return {"role": "tool", "tool_call_id": identity, "name": str(name or ""), "content": content}


def ask_until(
    ask: Ask,
    role: str,
    messages: Sequence[Message],
    schema: Mapping[str, Any],
    read: Callable[[str], T],
    *,
    tries: int,
    longest: int,
) -> T:
    """The answer of the model in a role, as `read` reads it. After a ValueError of `read` the model
    is asked again with the error's text and the first `longest` characters of its answer, `tries`
    times in all. Raises EpisodeError at the role's boundary if no answer is usable."""
    asked, why = list(messages), ""
    for _ in range(tries):
        answer = ask(role, asked, schema)
        try:
            return read(answer)
        except ValueError as error:
            why = str(error)
        asked = [
            *messages,
            {"role": "assistant", "content": answer[:longest]},
            {"role": "user", "content": f"This cannot be used: {why}. Answer again."},
        ]
    raise EpisodeError(
        boundary_of(role).value, f"the {role} gave no usable answer in {tries} tries: {why}"
    )
