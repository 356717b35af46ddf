"""Files that hold a JSON document: of ATIF, or a log of Inspect.

ATIF 1 is Harbor's Agent Trajectory Interchange Format, one conversation a document. Steps of system
and user are messages; a step of the agent is its message, its calls and, as results of tools, its
observation. Reasoning is not part of what is imitated. What trace_bench writes into `extra` (task,
score, calls that could not be read) is used where it is there.

A log of Inspect (inspect_ai), format 2 as JSON, holds one conversation a sample. The tools are
those of the sample's first model event; in a log of trace_bench, which has no events, their names
are in the sample's metadata. Samples with an error are no demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trace_bench.core.chat import text_message
from trace_bench.core.errors import UserError
from trace_bench.core.types import ROLES, Message, Tool
from trace_bench.methods.sft.found import Dialogue, Part, mapping

SOURCES = ("system", "user", "agent")
ATTACHED = "attachment://"


def read(data: Any, where: str) -> Iterator[Dialogue]:
    """Its conversations. Raises UserError naming the field that is wrong."""
    if isinstance(data, dict) and str(data.get("schema_version", "")).startswith("ATIF-v1."):
        yield _atif(Part(data, where))
    elif isinstance(data, dict) and isinstance(data.get("eval"), dict) and "version" in data:
        yield from _log(Part(data, where))
    else:
        raise UserError(
            f"{where} is neither a document of ATIF 1 (field schema_version) nor a log of Inspect "
            "(fields version and eval). Change `method.data`."
        )


# -- ATIF -----------------------------------------------------------------------------------------


def _atif(document: Part) -> Dialogue:
    agent, extra = document.part("agent"), document.mapping("extra")
    messages: list[Message] = []
    unusable = None
    for step in document.parts("steps"):
        messages += _step(step)
        if step.mapping("extra").get("malformed"):
            unusable = "a call that could not be read"
        if step.data.get("is_copied_context"):
            unusable = "context that is copied from another trajectory"
    return Dialogue(
        document.where,
        tuple(messages),
        tools=agent.tools("tool_definitions") or None,
        task=extra.get("task"),
        success=mapping(extra.get("score")).get("success"),
        unusable="the episode was lost" if extra.get("failure") else unusable,
    )


def _step(step: Part) -> list[Message]:
    source = step.data.get("source")
    if source not in SOURCES:
        raise step.wrong("source", source, " or ".join(SOURCES))
    said = step.text("message")
    if source != "agent":
        return [{"role": source, "content": said}]
    calls = [made.call("tool_call_id", "function_name") for made in step.parts("tool_calls")]
    names = {c["id"]: c["function"]["name"] for c in calls}
    out: list[Message] = [text_message(said, calls)]
    observed = step.data.get("observation") is not None
    seen = step.part("observation").parts("results") if observed else []
    for result in seen:
        answered = str(result.data.get("source_call_id") or "")
        out.append({"role": "tool", "tool_call_id": answered, "name": names.get(answered, ""),
                    "content": result.text("content")})  # fmt: skip
    return out


# -- Inspect --------------------------------------------------------------------------------------


def _log(log: Part) -> Iterator[Dialogue]:
    if log.data["version"] != 2:
        raise log.wrong("version", log.data["version"], "2")
    for sample in log.parts("samples"):
        named = f"sample {sample.data.get('id')} epoch {sample.data.get('epoch')}"
        yield _sample(Part(sample.data, f"{log.where}, {named}"))


def _sample(sample: Part) -> Dialogue:
    attached = sample.mapping("attachments")
    messages: list[Message] = []
    unusable = "the episode was lost" if sample.data.get("error") else None
    for message in sample.parts("messages"):
        messages.append(_message(message, attached))
        if any(made.get("parse_error") for made in message.data.get("tool_calls") or ()):
            unusable = "a call that could not be read"
    names = sample.mapping("metadata").get("tools")
    score = mapping(sample.mapping("scores").get("success"))
    return Dialogue(
        sample.where,
        tuple(messages),
        tools=_tools(sample),
        offered=tuple(map(str, names)) if isinstance(names, list) else None,
        task=str(sample.data.get("id")),
        success=score["value"] in (1, True, "C") if "value" in score else None,
        unusable=unusable if messages else "it has no messages",
    )


def _message(message: Part, attached: Mapping[str, str]) -> Message:
    role = message.data.get("role")
    if role not in ROLES:
        raise message.wrong("role", role, ", ".join(ROLES))
    content = message.text("content")
    content = attached.get(content.removeprefix(ATTACHED), content)
    if role == "tool":
        answered, name = message.data.get("tool_call_id") or "", message.data.get("function") or ""
        content = content or str(message.mapping("error").get("message", ""))
        return {"role": "tool", "tool_call_id": answered, "name": name, "content": content}
    calls = [made.call("id", "function") for made in message.parts("tool_calls")]
    out: Message = {"role": role, "content": content}
    return {**out, "tool_calls": calls} if calls else out


def _tools(sample: Part) -> tuple[Tool, ...] | None:
    asked = [event for event in sample.parts("events") if event.data.get("event") == "model"]
    if not asked:
        return None
    kept = ("name", "description", "parameters")
    return tuple(
        {"type": "function", "function": {k: tool[k] for k in kept if k in tool}}
        for tool in replace(asked[0], field="events (model)").tools("tools")
    )
