"""Makes folders of recorded dialogues for env=recorded.

    python -m trace_bench.record suite env=toolsandbox split=dialogues out=recordings/phone

Replays the references of a split (default: the training split). Own settings: `out`, the folder;
`turns`, the fewest turns of the user (default 2); `split`. All others are those of a run. A
scenario of the development or the held-out split is never recorded. The same command again makes no
second folder. Checklists by a model: examples/annotate.py.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from trace_bench.checklists.items import Checklist, checklists_of, read_checklist, to_json
from trace_bench.checklists.judges import ChecklistProgress, ProgramJudge, Scene
from trace_bench.checklists.sources import of_reference, spread
from trace_bench.checklists.talk import UserTurn, text_of, turns_of
from trace_bench.core.command import command, told, whole_number
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Suite, conversation, make_env, perform, performed
from trace_bench.core.store import Lines, canonical, read_object, stable_seed, whole, write_json
from trace_bench.core.types import Message, Task
from trace_bench.envs.recorded.data import META, Record
from trace_bench.play.suites import chosen_of, splits_of, tasks_of
from trace_bench.runner.build import make_suite, run_context
from trace_bench.settings.compose import compose, take
from trace_bench.settings.identity import parts_of
from trace_bench.settings.schema import Settings

SHARES = {"train": 0.9, "dev": 0.05, "test": 0.05}
"""The shares of the scenarios that each split gets."""


@command()
def main(arguments: Sequence[str]) -> int:
    """The exit status: 0, or 2 for wrong input."""
    if told(arguments or ["--help"], __doc__):
        return 0
    name, *words = arguments
    if name != "suite":
        raise unknown("command", name, ["suite"], "the first argument")
    if not (place := take(words, "out")):
        raise UserError("`out` is missing: the folder of the recordings, such as out=recordings/a.")
    split, least = take(words, "split"), whole_number("turns", take(words, "turns") or 2)
    counted = of_suite(compose(["method=base", *words]), Path(place), split, least)
    print(json.dumps(counted, indent=2, ensure_ascii=False))
    return 0


def of_suite(settings: Settings, out: Path, split: str | None, least: int) -> dict[str, Any]:
    """The counts of the folder, which is made unless these settings have made it. UserError."""
    parts = parts_of(settings)
    with closing(make_suite(settings, parts, run_context(settings, parts))) as suite:
        # The splits that no recording may share a scenario with.
        named = dict.fromkeys((settings.env.dev_split, settings.evaluation.split))
        against = [split for split in named if split in splits_of(suite)]
        chosen = chosen_of(suite, split or settings.env.train_split)
        if chosen in against:
            raise UserError(
                f"split={chosen} is held out: recordings are trained on. Change `split`; allowed: "
                f"{', '.join(s for s in splits_of(suite) if s not in against)}."
            )
        made_by = {
            "command": "suite", "suite": f"{suite.name}/{suite.variant}", "split": chosen,
            "options": dict(settings.env.options), "turns": least,
        }  # fmt: skip
        if not suite.has(Suite.reference):
            name = f"{suite.name}/{suite.variant}"
            raise UserError(f"{name} has no references to record. Change `env`.")
        if (out / META).exists():
            there = read_object(out / META)
            if there.get("made_by") != made_by:
                raise UserError(
                    f"{out} holds recordings of another command: "
                    f"{canonical(there.get('made_by'))}. Change `out`, or remove the folder."
                )
            lines = {path.stem: len([*Lines(path, dict)]) for path in out.glob("*.jsonl")}
            if (counted := there.get("dialogues")) != {**dict.fromkeys(SHARES, 0), **lines}:
                raise UserError(
                    f"{out} has {lines} dialogues, and {META} says {counted}. Remove the folder."
                )
            return there
        with whole(out, "Change `out`.") as folder:
            return record(suite, tasks_of(suite, chosen), folder, made_by, against)


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


if __name__ == "__main__":
    sys.exit(main())
