"""A folder of recorded dialogues: one JSONL file for each split, one dialogue a line.

    {"uuid": "...", "messages": [...], "tools": [...], "checklists": [variant][turn][item],
     "source": {"suite": "toolsandbox/embedded", "task": "..."}}

Messages and tools are OpenAI's; `checklists` and `source` may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.checklists.items import read_checklists, to_json
from trace_bench.checklists.sources import of_reference
from trace_bench.checklists.talk import turns_of
from trace_bench.core.decode import Limits, Unreadable, messages_of, read, shaped
from trace_bench.core.errors import UserError
from trace_bench.core.store import bounded_lines
from trace_bench.core.text import without_surrogates

META = "meta.json"  # beside the splits: how the folder was made
LINE = Limits(8 * 2**20)  # of one dialogue
Record = dict[str, Any]


@dataclass(frozen=True)
class _RecordedArgument:
    """What `tools.fault_of` reads of it."""

    type: str | tuple[str, ...] | None = None
    enum: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class _RecordedArguments:
    properties: Mapping[str, _RecordedArgument] = field(default_factory=dict)
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class _RecordedFunction:
    name: str
    parameters: _RecordedArguments = _RecordedArguments()


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
        identity = data.get("uuid")
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
