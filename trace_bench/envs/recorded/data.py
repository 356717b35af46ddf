"""A folder of recorded dialogues: one JSONL file for each split, one dialogue a line.

    {"uuid": "...", "messages": [...], "tools": [...], "checklists": [variant][turn][item],
     "source": {"suite": "toolsandbox/embedded", "task": "..."}}

Messages and tools are OpenAI's; `checklists` and `source` may be missing. Also read:

    APIGen   {"conversations": [{"from": "human" | "gpt" | "function_call" | "observation",
             "value": "..."}], "tools": "...", "system": "..."}; `tools` may be JSON in a text

Tools without the wrapper {"type": "function", "function": ...} get one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.checklists.items import read_checklists, to_json
from trace_bench.checklists.sources import of_reference
from trace_bench.checklists.talk import turns_of
from trace_bench.core.chat import text_message
from trace_bench.core.decode import messages_of, shaped
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.store import bounded_lines
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import Message

META = "meta.json"  # beside the splits: how the folder was made
LINE = Limits(8 * 2**20)  # of one dialogue
Record = dict[str, Any]


@dataclass(frozen=True)
class _RecordedFunction:
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _RecordedTool:
    function: _RecordedFunction


def splits_in(folder: Path) -> list[str]:
    """The names of the splits. Raises UserError if there is none."""
    names = sorted(path.stem for path in folder.glob("*.jsonl")) if folder.is_dir() else []
    if not names:
        raise UserError(
            f"{folder} has no recorded dialogues; needed: a folder with files such as train.jsonl "
            "(`python -m trace_bench.record` makes one). Change the setting `env.folder`."
        )
    return names


def read_split(folder: Path, split: str) -> Iterator[Record]:
    """The dialogues of a split, in order. Raises UserError naming file, line and what is wrong."""
    path = folder / f"{split}.jsonl"
    seen: dict[str, int] = {}
    for number, line in bounded_lines(path, LINE.size, "Change the setting `env.folder`."):
        where = f"{path}, line {number}"
        try:
            data = without_surrogates(read(line, LINE))
        except Unreadable as error:
            raise _wrong(where, f"it is no JSON ({error})") from error
        record = read_record(data, where)
        first = seen.setdefault(record["uuid"], number)
        if first != number:
            raise _wrong(where, f"line {first} has the id {record['uuid']!r} already")
        yield record


def read_record(data: Any, where: str) -> Record:
    """One dialogue in the form above, with at least one checklist: its own, or one made of its
    calls and replies. Raises UserError."""
    if not isinstance(data, Mapping):
        raise _wrong(where, "it is no JSON object")
    try:
        data = as_openai(data)
        identity = data["uuid"]
        if not isinstance(identity, str | int) or not str(identity).isprintable():
            raise ValueError("it has no `uuid`, a printable text")
        messages_of(data.get("messages"))
        shaped(data.get("tools"), _RecordedTool, "tools")
    except ValueError as error:
        raise _wrong(where, str(error)) from error
    record: Record = {"uuid": str(identity), "messages": data["messages"], "tools": data["tools"]}
    _, turns = turns_of(record["messages"])
    if not turns or not all(turn.steps for turn in turns):
        raise _wrong(where, "needed is at least one turn of the user, each answered by the agent")
    if data.get("checklists"):
        checklists = read_checklists(data["checklists"], f"{where}: {identity}")
        if (count := len(checklists[0].turns)) != len(turns):
            raise _wrong(
                where,
                f"its checklists have {count} turns, and its messages {len(turns)} of the user",
            )
    else:
        checklists = (of_reference(turns),)
    record["checklists"] = to_json(checklists)
    if isinstance(data.get("source"), Mapping):
        record["source"] = dict(data["source"])
    return record


def _wrong(where: str, what: str) -> UserError:
    return UserError(
        f"{where}: {what}. docs/checklists.md has the format; correct the file, or change the "
        "setting `env.folder`."
    )


INNER = Limits(4 * 2**20)  # of JSON in a text
_SPEAKERS = {"human": "user", "user": "user", "system": "system", "gpt": "assistant",
             "assistant": "assistant"}  # fmt: skip


def as_openai(data: Mapping[str, Any]) -> dict[str, Any]:
    """The record with `uuid`, `messages` and `tools`. Raises ValueError for what cannot be read."""
    out = dict(data)
    if "conversations" in out:
        out["messages"] = _of_conversations(out["conversations"], out.get("system"))
    names = ("uuid", "id")
    out["uuid"] = next((data[key] for key in names if data.get(key)), None)
    tools = _unpacked(out.get("tools", []), "tools")
    if isinstance(tools, list):
        out["tools"] = [_wrapped(tool) for tool in tools]
    if isinstance(out.get("messages"), list):
        out["messages"] = [_message(m) for m in out["messages"]]
    return out


def _wrapped(tool: Any) -> Any:
    if isinstance(tool, Mapping) and "function" not in tool and isinstance(tool.get("name"), str):
        return {"type": "function", "function": dict(tool)}
    return tool


def _message(message: Any) -> Any:
    """A message whose calls have their arguments as JSON texts."""
    if not isinstance(message, Mapping) or not isinstance(message.get("tool_calls"), list):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and not isinstance(function.get("arguments", ""), str):
            call = {**call, "function": {**function, "arguments": _text(function["arguments"])}}
        calls.append(call)
    return {**message, "tool_calls": calls}


def _of_conversations(talk: Any, system: Any) -> list[Message]:
    """APIGen's messages. A function call is a message of the agent, its observation the answer."""
    if not isinstance(talk, list):
        raise ValueError("`conversations` is no list")
    out: list[Message] = [{"role": "system", "content": system}] if system else []
    for number, said in enumerate(talk):
        said = said if isinstance(said, Mapping) else {}
        source, value = said.get("from"), said.get("value")
        if isinstance(source, str) and source in _SPEAKERS and isinstance(value, str):
            out.append({"role": _SPEAKERS[source], "content": value})
        elif source == "function_call":
            value = _unpacked(value, f"conversation {number}")
            calls = value if isinstance(value, list) else [value]
            out.append(_calling([_named(c, f"conversation {number}") for c in calls], number))
        elif source in ("observation", "tool"):
            asked = out[-1].get("tool_calls") if out else None
            last = str(asked[0]["id"]) if asked else ""
            out.append({"role": "tool", "tool_call_id": last, "content": _text(value)})
        else:
            raise ValueError(
                f"conversation {number} is from {source!r}; allowed: human, gpt, function_call, "
                "observation, system"
            )
    return out


def _named(call: Any, where: str) -> tuple[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise ValueError(f"{where}: a function call without a name")
    return call["name"], call.get("arguments", {})


def _calling(calls: list[tuple[str, Any]], number: int) -> Message:
    return text_message(
        "",
        [
            {
                "id": f"call_{number}_{place}",
                "type": "function",
                "function": {"name": name, "arguments": arguments or {}},
            }
            for place, (name, arguments) in enumerate(calls)
        ],
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unpacked(value: Any, where: str) -> Any:
    """The value of a JSON text; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return read(value or "[]", INNER)
    except Unreadable as error:
        raise ValueError(f"`{where}` is a text that is no JSON ({error})") from error
