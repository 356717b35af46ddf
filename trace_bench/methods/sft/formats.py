"""Demonstrations of others: the files of `method.data`, each read by what is in it. In a file
`.json` is a document (documents.py), in a file `.jsonl` each line a conversation, in OpenAI's chat
format or that of the Agent Data Protocol.

A line in OpenAI's format has `messages`, and `tools` if it says which were offered. An assistant's
message with `weight` 0 is not learned, as in OpenAI's fine-tuning. The older `function_call` is
refused.

A trajectory of the Agent Data Protocol (arXiv 2510.24702, neulab/agent-data-protocol) has an `id`
and a `content` list of actions and observations that alternate; each item names its kind in
`class_`. Read here: `text_observation` (`source` "user" is the user, anything else a tool's
result), `message_action` and `api_action` (`function`, `kwargs`). Code, web pages and images are
refused, since no agent of this project acts by them. The protocol's collections are of many worlds,
so their tools need not be the suite's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trace_bench.core.chat import call_json, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines, read_bytes
from trace_bench.core.types import ROLES, Message, Tool
from trace_bench.methods.sft import documents
from trace_bench.methods.sft.found import Dialogue, Part, call

ENDINGS = (".json", ".jsonl")
LONGEST = 64 * 2**20  # bytes of a conversation
NAMES = {"developer": "system"}  # OpenAI's roles under other names
KINDS = ("text_observation", "message_action", "api_action")  # of the Agent Data Protocol


def read(place: Path) -> Iterator[Dialogue]:
    """The conversations of a file, or of all files in a folder and below it, by name. Raises
    UserError naming file, line and field of what is not in its format."""
    if not place.is_dir():
        yield from _file(place)
        return
    files = sorted(p for p in place.rglob("*") if p.suffix in ENDINGS and p.is_file())
    if not files:
        raise UserError(
            f"method.data={place} holds no file that ends in {' or '.join(ENDINGS)}. Change "
            "`method.data`."
        )
    for path in files:
        yield from _file(path)


def _file(path: Path) -> Iterator[Dialogue]:
    if path.suffix == ".eval":
        raise UserError(
            f"{path} is compressed by Inspect. Convert it: inspect log convert {path} --to json "
            "--output-dir DIR; then set `method.data` to DIR."
        )
    fix = "Change `method.data`."
    try:
        if path.suffix == ".json":
            yield from documents.read(_parsed(read_bytes(path, fix), str(path)), str(path))
            return
        for number, line in bounded_lines(path, LONGEST, fix):
            where = f"{path}, line {number}"
            data = _parsed(line, where)
            known = isinstance(data, dict) and "messages" in data
            yield openai(Part(data, where)) if known else adp(data, where)
    except FileNotFoundError as error:
        raise UserError(f"{path} cannot be read ({error}). {fix}") from error


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}); see `method.data`.") from error


# -- OpenAI's chat format -------------------------------------------------------------------------


def openai(line: Part) -> Dialogue:
    line.need("messages", list)
    names: dict[str, str] = {}
    given = line.parts("messages")
    messages = tuple([_message(part, names) for part in given])
    tools = line.tools("tools") or None
    skipped = frozenset(n for n, part in enumerate(given) if not _weight(part))
    return Dialogue(line.where, messages, tools=tools, skipped=skipped)


def _weight(message: Part) -> int:
    weight = message.data.get("weight", 1)
    if weight not in (0, 1):
        raise message.wrong("weight", weight, "0 or 1")
    return int(weight)


def _message(message: Part, names: dict[str, str]) -> Message:
    """`names`: of the tools that were called, by the calls' ids."""
    given = message.data
    role = NAMES.get(str(given.get("role")), given.get("role"))
    if role not in ROLES:
        raise message.wrong("role", role, ", ".join(ROLES))
    if "function_call" in given:
        raise message.wrong("function_call", given["function_call"], "`tool_calls`")
    out: Message = {"role": role, "content": message.text("content")}
    if role == "tool":
        answered = message.need("tool_call_id", str)
        out |= {"tool_call_id": answered, "name": given.get("name") or names.get(answered, "")}
    for made in message.parts("tool_calls"):
        function = made.part("function")
        name, arguments = function.need("name", str), function.need("arguments", str)
        identity = made.need("id", str)
        names[identity] = name
        out.setdefault("tool_calls", []).append(call_json(identity, name, arguments))
    return out


# -- the Agent Data Protocol ----------------------------------------------------------------------


def adp(data: Any, where: str) -> Dialogue:
    """A trajectory. A tool's parameters are those that calls of it use."""
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
        elif kind == "api_action":
            made = Part(item, f"{where}, item {place}")
            name = made.need("function", str)
            given = {} if item.get("kwargs") is None else made.need("kwargs", dict)
            _add_call(messages, item, name, given, place)
            tools.setdefault(name, {}).update({key: {} for key in given})
        else:
            raise UserError(
                f"{where}, item {place}: class_ {kind!r}; allowed: {', '.join(KINDS)}. Leave such "
                "trajectories out of `method.data`."
            )
    if not any(m["role"] == "assistant" for m in messages) or messages[0]["role"] == "assistant":
        raise UserError(f"{where}: needed is an observation and then an action; see `method.data`.")
    offered = tuple(_tool(name, properties) for name, properties in tools.items())
    return Dialogue(where, tuple(messages), tools=offered, general=True)


def _observed(item: Mapping[str, Any]) -> Message:
    content = str(item.get("content", ""))
    if item.get("source") == "user":
        return {"role": "user", "content": content}
    call_id = str(item.get("tool_call_id") or "")
    return {"role": "tool", "tool_call_id": call_id, "name": str(item.get("name") or ""),
            "content": content}  # fmt: skip


def _add_call(
    messages: list[Message], item: Mapping[str, Any], name: str, given: Mapping[str, Any],
    place: int,
) -> None:  # fmt: skip
    """A call joins the message just before it, as one turn of the agent."""
    made = call(str(item.get("tool_call_id") or f"call_{place}"), name, dict(given))
    if messages and messages[-1]["role"] == "assistant":
        last = messages[-1]
        messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), made]}
    else:
        messages.append(text_message("", [made]))


def _tool(name: str, properties: Mapping[str, Any]) -> Tool:
    parameters = {"type": "object", "properties": dict(properties), "required": []}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
