"""Demonstrations as a file, to fine-tune any model on: those of several worlds, one file each.

A line is a conversation in OpenAI's format for fine-tuning: `messages`, of which an assistant's
with `weight` 0 is not learned (a mistake), and `tools`; `method=sft method.tools=own` reads them.
With `varied=true` every conversation names its tools in another style and offers them in another
order, so that an agent learns to read the tools at hand and not one world's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from trace_bench.core.store import write_text
from trace_bench.core.types import Message, Positive, Tool
from trace_bench.tiny import Log, MadeSettings, World
from trace_bench.tiny.played import Demonstration
from trace_bench.tiny.tasks import Tasks

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
ALIKE = (
    ("get", "fetch", "read", "retrieve"), ("search", "find", "lookup", "query"),
    ("set", "change", "update", "configure"), ("add", "create", "new", "insert"),
    ("remove", "delete", "erase", "drop"), ("send", "post", "submit", "deliver"),
    ("list", "show", "display", "enumerate"), ("go", "move", "walk", "head"),
    ("take", "grab", "collect", "acquire"), ("open", "unclose"), ("put", "place", "lay"),
)  # fmt: skip
STYLES: Sequence[Callable[[Sequence[str]], str]] = (
    "_".join,
    "-".join,
    lambda words: words[0] + "".join(word.capitalize() for word in words[1:]),
    lambda words: "".join(word.capitalize() for word in words),
)
VARIED = 0.75  # share of conversations whose names change; of verbs, that become others
OFFERED = 0.7  # of the tools that a conversation does not use


@dataclass(frozen=True)
class WrittenSettings:
    """What `demonstrate` takes beside the settings of a run."""

    out: Path
    """The file."""
    count: Positive = 400
    """Demonstrations."""
    varied: bool = False
    """Names tools and arguments in many styles, and offers the tools in another order."""
    split: str | None = None
    """The split of the tasks; null: demo, or without one every second task of `env.train_split`."""
    synthetic: bool = False
    """Every second demonstration is of a task that the suite makes, of all its capabilities
    in turn."""
    seed: int = 0
    """Of the demonstrations."""


def write(world: World, settings: WrittenSettings, log: Log) -> None:
    """Writes the file, replacing one that is there. Raises UserError for a suite without solutions
    and for held-out tasks."""
    demonstrating = MadeSettings(
        split=settings.split,
        synthetic=settings.synthetic,
        demonstrations=settings.count,
        seed=settings.seed,
    )
    lines = [
        line(varied(shown, rng) if settings.varied else shown) + "\n"
        for shown, rng in Tasks(world, demonstrating).in_turn("written")
    ]
    write_text(settings.out, "".join(lines))
    log(
        f"{len(lines)} demonstrations in {settings.out}; "
        f"{settings.count - len(lines)} episodes did not end in success and are left out"
    )


def line(demonstration: Demonstration) -> str:
    """A demonstration in OpenAI's format for fine-tuning."""
    learned = iter(demonstration.learned)
    messages = [
        {**m, "weight": int(next(learned))} if m["role"] == "assistant" else m
        for m in demonstration.messages
    ]
    return json.dumps({"messages": messages, "tools": demonstration.tools}, ensure_ascii=False)


def varied(demonstration: Demonstration, rng: Random) -> Demonstration:
    """The demonstration with tools of other names and order, without some that it does not use."""
    used = {
        call["function"]["name"]
        for m in demonstration.messages
        for call in m.get("tool_calls") or ()
    }
    tools = [
        t for t in demonstration.tools if t["function"]["name"] in used or rng.random() < OFFERED
    ]
    rng.shuffle(tools)
    if rng.random() >= VARIED:
        return replace(demonstration, tools=tuple(tools))
    style = rng.choice(STYLES)
    verbs = {verb: rng.choice(group) for group in ALIKE for verb in group}
    names = _names((tool["function"]["name"] for tool in tools), style, verbs, rng)
    keys = _names((key for tool in tools for key in _properties(tool)), rng.choice(STYLES), {}, rng)
    return replace(
        demonstration,
        tools=tuple(_tool(tool, names, keys) for tool in tools),
        messages=tuple(_message(message, names, keys) for message in demonstration.messages),
    )


def _names(olds: Any, style: Callable[[Sequence[str]], str], verbs: Mapping[str, str],
           rng: Random) -> dict[str, str]:  # fmt: skip
    """New names, each of one old name only."""
    new: dict[str, str] = {}
    for old in dict.fromkeys(olds):
        words = [word.lower() for word in WORD.findall(old)] or [old]
        name = style([verbs.get(w, w) if rng.random() < VARIED else w for w in words])
        new[old] = next(n for n in (name, old, f"{old}_2") if n not in new.values())
    return new


def _properties(tool: Tool) -> Mapping[str, Any]:
    return (tool["function"].get("parameters") or {}).get("properties") or {}


def _tool(tool: Tool, names: Mapping[str, str], keys: Mapping[str, str]) -> Tool:
    function = dict(tool["function"])
    function["name"] = names[function["name"]]
    if properties := _properties(tool):
        parameters = dict(function["parameters"])
        parameters["properties"] = {keys[key]: value for key, value in properties.items()}
        parameters["required"] = [keys[key] for key in parameters.get("required") or ()]
        function["parameters"] = parameters
    return {**tool, "function": function}


def _message(message: Message, names: Mapping[str, str], keys: Mapping[str, str]) -> Message:
    out: dict[str, Any] = {**message}
    if "name" in out:
        out["name"] = names.get(out["name"], out["name"])
    calls = []
    for call in message.get("tool_calls") or ():
        values = json.loads(call["function"]["arguments"])
        arguments = json.dumps({keys.get(k, k): v for k, v in values.items()}, ensure_ascii=False)
        function = {"name": names[call["function"]["name"]], "arguments": arguments}
        calls.append({**call, "function": function})
    return out | {"tool_calls": calls} if calls else out  # type: ignore[return-value]
