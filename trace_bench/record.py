"""Makes folders of recorded dialogues for env=recorded.

    python -m trace_bench.record suite env=toolsandbox split=dialogues out=recordings/phone

Replays the references of a split (default: the training split). Own settings: `out`, the folder;
`turns`, the fewest turns of the user (default 2); `split`. All others are those of a run. A
scenario of the development or the held-out split is never recorded. The same command again makes no
second folder. Checklists by a model: examples/annotate.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.command import command, take, told, whole_number
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Suite
from trace_bench.core.store import Lines, canonical, read_object, whole
from trace_bench.envs.recorded.data import META, SHARES, record
from trace_bench.play.suites import chosen_of, splits_of, tasks_of
from trace_bench.runner.build import suite_of


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
    counted = of_suite(words, Path(place), split, least)
    print(json.dumps(counted, indent=2, ensure_ascii=False))
    return 0


def of_suite(words: Sequence[str], out: Path, split: str | None, least: int) -> dict[str, Any]:
    """The counts of the folder, which is made unless these settings have made it. UserError."""
    with suite_of(words) as (settings, suite):
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


if __name__ == "__main__":
    sys.exit(main())
