"""Documents of ATIF 1, Harbor's Agent Trajectory Interchange Format, one conversation each.

Steps of system and user are messages; a step of the agent is its message, its calls and, as results
of tools, its observation. Reasoning is not part of what is imitated. What trace_bench writes into
`extra` (task, score, calls that could not be read) is used where it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.core.chat import text_message
from trace_bench.core.types import Message
from trace_bench.methods.sft.formats.found import (
    Dialogue,
    call,
    mapping,
    need,
    objects,
    text,
    wrong,
)

SOURCES = ("system", "user", "agent")


def is_one(data: Mapping[str, Any]) -> bool:
    return str(data.get("schema_version", "")).startswith("ATIF-v1.")


def read(data: Mapping[str, Any], where: str) -> Dialogue:
    """A document. Raises UserError naming the field that is wrong."""
    agent = need(data, "agent", dict, where, "")
    extra = mapping(data.get("extra"))
    messages: list[Message] = []
    unusable = None
    for place, step in enumerate(objects(data, "steps", where, "")):
        messages += _step(step, where, f"steps[{place}]")
        if mapping(step.get("extra")).get("malformed"):
            unusable = "a call that could not be read"
        if step.get("is_copied_context"):
            unusable = "context that is copied from another trajectory"
    return Dialogue(
        where,
        tuple(messages),
        tools=tuple(objects(agent, "tool_definitions", where, "agent")) or None,
        task=extra.get("task"),
        success=mapping(extra.get("score")).get("success"),
        unusable="the episode was lost" if extra.get("failure") else unusable,
    )


def _step(step: Mapping[str, Any], where: str, field: str) -> list[Message]:
    source = step.get("source")
    if source not in SOURCES:
        raise wrong(where, f"{field}.source", source, " or ".join(SOURCES))
    said = text(step.get("message"), where, f"{field}.message")
    if source != "agent":
        return [{"role": source, "content": said}]
    calls = []
    for n, made in enumerate(objects(step, "tool_calls", where, field)):
        own = f"{field}.tool_calls[{n}]"
        arguments = need(made, "arguments", dict, where, own)
        identity = need(made, "tool_call_id", str, where, own)
        calls.append(call(identity, need(made, "function_name", str, where, own), arguments))
    names = {c["id"]: c["function"]["name"] for c in calls}
    return [text_message(said, calls), *_results(step, names, where, field)]


def _results(
    step: Mapping[str, Any], names: Mapping[str, str], where: str, field: str
) -> list[Message]:
    if step.get("observation") is None:
        return []
    seen = need(step, "observation", dict, where, field)
    own = f"{field}.observation"
    out: list[Message] = []
    for n, result in enumerate(objects(seen, "results", where, own)):
        answered = str(result.get("source_call_id") or "")
        content = text(result.get("content"), where, f"{own}.results[{n}].content")
        out.append({"role": "tool", "tool_call_id": answered, "name": names.get(answered, ""),
                    "content": content})  # fmt: skip
    return out
