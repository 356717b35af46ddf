"""Logs of Inspect (inspect_ai), format 2 as JSON: one conversation a sample.

The tools are those of the sample's first model event; in a log of trace_bench, which has no events,
their names are in the sample's metadata. Samples with an error are no demonstrations. `.eval` files
are first converted by Inspect: `inspect log convert FILE --to json --output-dir DIR`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trace_bench.core.types import ROLES, Message, Tool
from trace_bench.methods.sft.formats.found import (
    Dialogue,
    call,
    mapping,
    need,
    objects,
    text,
    wrong,
)

ATTACHED = "attachment://"


def is_one(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("eval"), dict) and "version" in data


def read(data: Mapping[str, Any], where: str) -> Iterator[Dialogue]:
    """A log's samples. Raises UserError naming the sample and its field that is wrong."""
    if data["version"] != 2:
        raise wrong(where, "version", data["version"], "2")
    for sample in objects(data, "samples", where, ""):
        own = f"{where}, sample {sample.get('id')} epoch {sample.get('epoch')}"
        yield _sample(sample, own)


def _sample(sample: Mapping[str, Any], where: str) -> Dialogue:
    attached = mapping(sample.get("attachments"))
    messages: list[Message] = []
    unusable = "the episode was lost" if sample.get("error") else None
    for place, message in enumerate(objects(sample, "messages", where, "")):
        messages.append(_message(message, attached, where, f"messages[{place}]"))
        if any(made.get("parse_error") for made in message.get("tool_calls") or ()):
            unusable = "a call that could not be read"
    names = mapping(sample.get("metadata")).get("tools")
    score = mapping(mapping(sample.get("scores")).get("success"))
    return Dialogue(
        where,
        tuple(messages),
        tools=_tools(sample, where),
        offered=tuple(map(str, names)) if isinstance(names, list) else None,
        task=str(sample.get("id")),
        success=score["value"] in (1, True, "C") if "value" in score else None,
        unusable=unusable if messages else "it has no messages",
    )


def _message(
    message: Mapping[str, Any], attached: Mapping[str, str], where: str, field: str
) -> Message:
    role = message.get("role")
    if role not in ROLES:
        raise wrong(where, f"{field}.role", role, ", ".join(ROLES))
    content = text(message.get("content"), where, f"{field}.content")
    content = attached.get(content.removeprefix(ATTACHED), content)
    if role == "tool":
        answered, name = message.get("tool_call_id") or "", message.get("function") or ""
        content = content or str(mapping(message.get("error")).get("message", ""))
        return {"role": "tool", "tool_call_id": answered, "name": name, "content": content}
    out: Message = {"role": role, "content": content}
    for n, made in enumerate(objects(message, "tool_calls", where, field)):
        own = f"{field}.tool_calls[{n}]"
        arguments = need(made, "arguments", dict, where, own)
        identity = need(made, "id", str, where, own)
        made_call = call(identity, need(made, "function", str, where, own), arguments)
        out.setdefault("tool_calls", []).append(made_call)
    return out


def _tools(sample: Mapping[str, Any], where: str) -> tuple[Tool, ...] | None:
    asked = [e for e in objects(sample, "events", where, "") if e.get("event") == "model"]
    if not asked:
        return None
    kept = ("name", "description", "parameters")
    return tuple(
        {"type": "function", "function": {k: tool[k] for k in kept if k in tool}}
        for tool in objects(asked[0], "tools", where, "events (model)")
    )
