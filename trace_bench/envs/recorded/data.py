"""A folder of recorded dialogues: one JSONL file for each split, one dialogue a line.

    {"uuid": "...", "messages": [...], "tools": [...], "checklists": [variant][turn][item],
     "source": {"suite": "toolsandbox/embedded", "task": "..."}}

Messages and tools are OpenAI's; `checklists` and `source` may be missing. Also read: APIGen's
conversations and ATIF trajectories (`formats.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trace_bench.checklists.items import read_checklists, to_json
from trace_bench.checklists.sources import of_reference
from trace_bench.checklists.talk import turns_of
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.store import reason
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import ROLES
from trace_bench.envs.recorded.formats import as_openai

META = "meta.json"  # beside the splits: how the folder was made
LINE = Limits(8 * 2**20)  # of one dialogue
Record = dict[str, Any]


def splits_in(folder: Path) -> list[str]:
    """The names of the splits. Raises UserError if there is none."""
    found = sorted(path.stem for path in folder.glob("*.jsonl")) if folder.is_dir() else []
    if not found:
        raise UserError(
            f"{folder} has no recorded dialogues; needed: a folder with files such as train.jsonl "
            "(`python -m trace_bench.record` makes one). Change the setting `env.folder`."
        )
    return found


def read_split(folder: Path, split: str) -> Iterator[Record]:
    """The dialogues of a split, in order. Raises UserError naming file, line and what is wrong."""
    path = folder / f"{split}.jsonl"
    seen: dict[str, int] = {}
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                record = read_record(_parsed(line, where), where)
                if record["uuid"] in seen:
                    first = seen[record["uuid"]]
                    raise _wrong(where, f"line {first} has the id {record['uuid']!r} already")
                seen[record["uuid"]] = number
                yield record
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}. Change the setting `env.folder`.") from error


def read_record(data: Any, where: str) -> Record:
    """One dialogue in the form above, with at least one checklist: its own, or one made of its
    calls and replies. Raises UserError."""
    if not isinstance(data, Mapping):
        raise _wrong(where, "it is no JSON object")
    try:
        data = as_openai(data)
    except ValueError as error:
        raise _wrong(where, str(error)) from error
    identity = data.get("uuid") or data.get("id")
    if not isinstance(identity, str | int) or not str(identity).isprintable():
        raise _wrong(where, "it has no `uuid`, a printable text")
    record: Record = {"uuid": str(identity)}
    for key in ("messages", "tools"):
        if not isinstance(data.get(key), list):
            raise _wrong(where, f"`{key}` is {data.get(key)!r:.60}; allowed: a list")
        record[key] = data[key]
    if fault := _fault_of_messages(record["messages"]) or _fault_of_tools(record["tools"]):
        raise _wrong(where, fault)
    _, turns = turns_of(record["messages"])
    if not turns or not all(turn.steps for turn in turns):
        raise _wrong(where, "needed is at least one turn of the user, each answered by the agent")
    if data.get("checklists"):
        found = read_checklists(data["checklists"], f"{where}: {identity}")
        if len(found[0].turns) != len(turns):
            raise _wrong(
                where,
                f"its checklists have {len(found[0].turns)} turns, and its messages {len(turns)} "
                "of the user",
            )
    else:
        found = (of_reference(turns),)
    record["checklists"] = to_json(found)
    if isinstance(data.get("source"), Mapping):
        record["source"] = dict(data["source"])
    return record


def _fault_of_messages(messages: list[Any]) -> str | None:
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            return f"message {number} has no role of {', '.join(ROLES)}"
        if not isinstance(message.get("content"), str | None):
            return f"message {number}: content is no text"
        calls = message.get("tool_calls") or []
        for call in calls if isinstance(calls, list) else [None]:
            function = call.get("function") if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                return f"message {number}: a tool call without a function's name"
    return None


def _fault_of_tools(tools: list[Any]) -> str | None:
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return f"tool {number} has no function with a name"
        if not isinstance(function.get("parameters", {}), Mapping):
            return f"tool {number}: parameters is no object"
    return None


def _parsed(line: bytes, where: str) -> Any:
    try:
        return without_surrogates(read(line, LINE))
    except Unreadable as error:
        raise _wrong(where, f"it is no JSON ({error})") from error


def _wrong(where: str, what: str) -> UserError:
    return UserError(
        f"{where}: {what}. docs/checklists.md has the format; correct the file, or change the "
        "setting `env.folder`."
    )


def dump(record: Mapping[str, Any]) -> str:
    """One line of a split's file."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))
