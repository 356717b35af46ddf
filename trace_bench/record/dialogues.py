"""Dialogues from a suite's references, replayed in its environment, and the folder that they are
written to, line by line, so that the same command goes on where it was stopped."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from trace_bench.checklists.items import Checklist, checklists_of, read_checklist, to_json
from trace_bench.checklists.judges import ChecklistProgress, ProgramJudge, Scene
from trace_bench.checklists.sources import of_reference, rewarded_in, spread
from trace_bench.checklists.talk import UserTurn, text_of, turns_of
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Suite, conversation, make_env, perform, performed
from trace_bench.core.store import Lines, canonical, read_object, stable_seed, write_json
from trace_bench.core.types import Message, Milestone, Task
from trace_bench.envs.recorded.data import META, Record, read_record


def of_suite(suite: Suite, tasks: Sequence[Task]) -> Iterator[tuple[str, Record | None]]:
    """(uuid, the dialogue) of each task's reference; None for one that does not succeed."""
    if not suite.has(Suite.reference):
        raise UserError(f"{suite.name}/{suite.variant} has no references to record. Change `env`.")
    for task in tasks:
        yield task.id, _of_reference(suite, task)


def held_out(suite: Suite, splits: Sequence[str]) -> set[str]:
    """The scenarios of splits that no recording may share: what the user says as their references
    go."""
    scenarios = set()
    for split in splits:
        for task in suite.tasks(split):
            actions = suite.reference(task) if suite.has(Suite.reference) else ()
            scenarios.add(scenario_of(conversation(performed(suite, task, actions), actions)))
    return scenarios


def _of_reference(suite: Suite, task: Task) -> Record | None:
    actions = suite.reference(task)
    with closing(make_env(suite)) as env:
        steps = perform(env, task, actions)
        score = steps[-1].score or env.score()
    if not score.success:
        return None
    messages = conversation(steps, actions)
    opening, turns = turns_of(messages)
    return {
        "uuid": task.id,
        "messages": messages,
        "tools": list(steps[0].tools),
        "checklists": to_json([_checklist(suite, task, len(opening), turns, score.milestones)]),
        "source": {"suite": f"{suite.name}/{suite.variant}", "task": task.id, "by": "reference"},
    }


def _checklist(
    suite: Suite,
    task: Task,
    first: int,
    turns: Sequence[UserTurn],
    milestones: Sequence[Milestone],
) -> Checklist:
    """The suite's own checklist, laid over the turns; without one, of what was rewarded, or of all
    calls and replies if the suite does not say where its milestones were met."""
    if not suite.has(Suite.checklist):
        placed = any(m.place is not None for m in milestones)
        return of_reference(turns, rewarded_in(turns, first, milestones) if placed else None)
    items = [list(turn) for turn in suite.checklist(task)]
    checklist = read_checklist(items, f"task {task.id}")
    if len(checklist.turns) == len(turns):
        return checklist
    return spread([item for turn in checklist.turns for item in turn], turns)


# -- the folder ------------------------------------------------------------------------------------

SHARES = {"train": 0.9, "dev": 0.05, "test": 0.05}
"""The shares of the scenarios that each split gets."""


class Folder:
    """The files of one command. `made_by`: what decides their content; a folder that was made by
    anything else is refused."""

    def __init__(self, path: Path, made_by: Mapping[str, Any], held_out: Collection[str]) -> None:
        self.path, self._made_by, self._held_out = path, dict(made_by), frozenset(held_out)
        there = read_object(path / META) if (path / META).exists() else None
        if there is not None and there.get("made_by") != self._made_by:
            raise UserError(
                f"{path} holds recordings of another command: {canonical(there.get('made_by'))}. "
                "Change `out`, or remove the folder."
            )
        if there is None:
            if path.exists() and any(path.iterdir()):
                raise UserError(f"{path} is not empty and no folder of recordings. Change `out`.")
            write_json(path / META, {"made_by": self._made_by})
        self._lines = {split: Lines(path / f"{split}.jsonl", dict) for split in SHARES}
        self._ids: set[str] = set()
        self.sizes = dict.fromkeys(SHARES, 0)
        self.turns = 0
        self.counts: Counter[str] = Counter()  # of what was left out, by reason
        for split, lines in self._lines.items():
            for number, line in enumerate(lines.existing, start=1):
                record = read_record(line, f"{path / split}.jsonl, line {number}")
                self._count(record, split, len(record["checklists"][0]))
            lines.existing.clear()

    def _count(self, record: Record, split: str, turns: int) -> None:
        self._ids.add(record["uuid"])
        self.sizes[split] += 1
        self.turns += turns

    def has(self, uuid: str) -> bool:
        return uuid in self._ids

    def add(self, record: Record, least: int) -> bool:
        """Appends a dialogue, in the split of its scenario; whether it was taken. Left out and
        counted: fewer than `least` turns, a scenario of the held-out tasks, a checklist that the
        dialogue itself does not satisfy."""
        opening, turns = turns_of(record["messages"])
        scenario = scenario_of(record["messages"])
        if len(turns) < least:
            self.counts["too short"] += 1
        elif scenario in self._held_out:
            self.counts["held out"] += 1
        elif not satisfies_itself(record, opening, turns):
            self.counts["does not satisfy its checklist"] += 1
        else:
            split = split_of(scenario)
            self._lines[split].append(record)
            self._count(record, split, len(turns))
            return True
        return False

    def finish(self) -> dict[str, Any]:
        """Writes what was counted and returns it."""
        for lines in self._lines.values():
            lines.close()
        facts = {
            "made_by": self._made_by,
            "dialogues": self.sizes,
            "left out": dict(self.counts),
            "turns": self.turns,
            "held-out scenarios checked": len(self._held_out),
        }
        write_json(self.path / META, facts)
        return facts


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
