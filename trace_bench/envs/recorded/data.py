"""A folder of recorded dialogues: one JSONL file for each split, one dialogue a line.

    {"uuid": "...", "messages": [...], "tools": [...], "checklists": [variant][turn][item],
     "source": {"suite": "toolsandbox/embedded", "task": "..."}}

Messages and tools are OpenAI's; `checklists` and `source` may be missing. The references of a suite
are written in the same form (`record`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.checklists.items import (
    Checklist,
    checklists_of,
    read_checklist,
    read_checklists,
    to_json,
)
from trace_bench.checklists.judges import ChecklistProgress, ProgramJudge, Scene
from trace_bench.checklists.sources import of_reference, spread
from trace_bench.checklists.talk import UserTurn, text_of, turns_of
from trace_bench.core.decode import Limits, Unreadable, messages_of, read, shaped
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Suite, conversation, make_env, perform, performed
from trace_bench.core.store import Lines, bounded_lines, canonical, stable_seed, write_json
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import Message, Task

META = "meta.json"  # beside the splits: how the folder was made
LINE = Limits(8 * 2**20)  # of one dialogue
Record = dict[str, Any]
SHARES = {"train": 0.9, "dev": 0.05, "test": 0.05}
"""The shares of the scenarios that each split gets."""


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


# -- recording a suite's references ---------------------------------------------------------------


def record(
    suite: Suite,
    tasks: Sequence[Task],
    folder: Path,
    made_by: Mapping[str, Any],
    against: Sequence[str],
) -> dict[str, Any]:
    """Writes the dialogues of the tasks' references, each in the split of its scenario; the counts.
    `made_by`: what decides them; `against`: the held-out splits. Raises UserError for none."""
    scenarios = held_out(suite, against)
    lines = {split: Lines(folder / f"{split}.jsonl", dict) for split in SHARES}
    sizes, left_out, turns = dict.fromkeys(SHARES, 0), Counter[str](), 0
    for task in tasks:
        dialogue = of_task(suite, task)
        if (why := refused(dialogue, made_by["turns"], scenarios)) is not None or dialogue is None:
            left_out[str(why)] += 1
            continue
        split = split_of(scenario_of(dialogue["messages"]))
        lines[split].append(dialogue)
        sizes[split] += 1
        turns += len(dialogue["checklists"][0])
    for file in lines.values():
        file.close()
    if not any(sizes.values()):
        raise UserError(
            f"no dialogue could be recorded: {dict(left_out)}. Lower `turns`, or change `split`."
        )
    facts = {
        "made_by": made_by,
        "dialogues": sizes,
        "left out": dict(left_out),
        "turns": turns,
        "held-out scenarios checked": len(scenarios),
    }
    write_json(folder / META, facts)
    return facts


def held_out(suite: Suite, splits: Sequence[str]) -> set[str]:
    """The scenarios of splits that no recording may share: what the user says as their references
    go."""
    scenarios = set()
    for split in splits:
        for task in suite.tasks(split):
            actions = suite.reference(task)
            scenarios.add(scenario_of(conversation(performed(suite, task, actions), actions)))
    return scenarios


def of_task(suite: Suite, task: Task) -> Record | None:
    """The dialogue of a task's reference; None for one that does not succeed."""
    actions = suite.reference(task)
    with closing(make_env(suite)) as env:
        steps = perform(env, task, actions)
        score = steps[-1].score or env.score()
    if not score.success:
        return None
    messages = conversation(steps, actions)
    _, turns = turns_of(messages)
    return {
        "uuid": task.id,
        "messages": messages,
        "tools": list(steps[0].tools),
        "checklists": to_json([_checklist(suite, task, turns)]),
        "source": {"suite": f"{suite.name}/{suite.variant}", "task": task.id, "by": "reference"},
    }


def _checklist(suite: Suite, task: Task, turns: Sequence[UserTurn]) -> Checklist:
    """The suite's own checklist, laid over the turns; without one, of all calls and replies."""
    if not suite.has(Suite.checklist):
        return of_reference(turns)
    items = [list(turn) for turn in suite.checklist(task)]
    checklist = read_checklist(items, f"task {task.id}")
    if len(checklist.turns) == len(turns):
        return checklist
    return spread([item for turn in checklist.turns for item in turn], turns)


def refused(record: Record | None, least: int, scenarios: Collection[str]) -> str | None:
    """Why a dialogue is left out: no success, fewer than `least` turns, a scenario of the held-out
    tasks, a checklist that the dialogue itself does not satisfy. None if it is not."""
    if record is None:
        return "without success"
    opening, turns = turns_of(record["messages"])
    if len(turns) < least:
        return "too short"
    if scenario_of(record["messages"]) in scenarios:
        return "held out"
    satisfied = satisfies_itself(record, opening, turns)
    return None if satisfied else "does not satisfy its checklist"


def scenario_of(messages: Sequence[Message]) -> str:
    """What the user wants, as a digest of all that the user says: dialogues of the same scenario
    are in the same split."""
    said = [" ".join(text_of(m).lower().split()) for m in messages if m["role"] == "user"]
    return hashlib.sha256(canonical(said).encode()).hexdigest()


def split_of(scenario: str) -> str:
    """The split of a scenario, the same on every machine."""
    draw = stable_seed("recorded", scenario) / 2**63
    for split, share in SHARES.items():
        if draw < share:
            return split
        draw -= share
    return next(iter(SHARES))


def satisfies_itself(record: Record, opening: Sequence[Message], turns: Sequence[UserTurn]) -> bool:
    """Whether the dialogue satisfies every item of its checklist by the judge by program."""
    checklists = checklists_of(record["checklists"])
    progress, steps = ChecklistProgress(checklists, ProgramJudge()), 0
    for number, turn in enumerate(turns):
        for place in range(len(turn.steps)):
            so_far = UserTurn(turn.user, turn.steps[: place + 1])
            progress.judge(number, steps, Scene(record["uuid"], tuple(opening), so_far))
            steps += 1
    return all(check.step is not None for check in progress.checks())
