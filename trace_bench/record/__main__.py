"""Makes folders of recorded dialogues for env=recorded.

    python -m trace_bench.record suite env=toolsandbox split=dialogues out=recordings/phone
    python -m trace_bench.record annotate recordings/phone out=recordings/annotated \\
        llm.annotator.by=endpoint llm.shared.base_url=http://127.0.0.1:8000/v1 llm.shared.model=NAME

`suite` replays the references of a split (default: the training split). Own settings: `out`, the
folder; `turns`, the fewest turns of the user (default 2); `split`; `variants` of annotated
checklists (default 1). All others are those of a run. A scenario of the development or the held-out
split is never recorded. The same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from trace_bench.core.command import command, told, whole_number
from trace_bench.core.errors import UserError, unknown
from trace_bench.llm.roles import cost_per_item
from trace_bench.play.suites import chosen_of, splits_of, tasks_of
from trace_bench.record.annotate import annotate
from trace_bench.record.dialogues import Folder, held_out, of_suite
from trace_bench.runner.build import log_line, make_roles, make_suite, run_context
from trace_bench.settings.compose import compose, take
from trace_bench.settings.identity import parts_of

COMMANDS = ("suite", "annotate")


@command()
def main(arguments: Sequence[str]) -> int:
    """The exit status: 0, or 2 for wrong input."""
    if told(arguments or ["--help"], __doc__):
        return 0
    command, *words = arguments
    if command not in COMMANDS:
        raise unknown("command", command, COMMANDS, "the first argument")
    out = take(words, "out")
    if not out:
        raise UserError("`out` is missing: the folder of the recordings, such as out=recordings/a.")
    counted = {"suite": _of_suite, "annotate": _annotated}[command](words, Path(out))
    print(json.dumps(counted, indent=2, ensure_ascii=False))
    return 0


def _of_suite(arguments: list[str], out: Path) -> dict[str, Any]:
    split = take(arguments, "split")
    least = whole_number("turns", take(arguments, "turns") or 2)
    settings = compose(["method=base", *arguments])
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
        folder = Folder(out, made_by, held_out(suite, against))
        for identity, record in of_suite(suite, tasks_of(suite, chosen)):
            if folder.has(identity):
                continue
            if record is None:
                folder.counts["without success"] += 1
            else:
                folder.add(record, least)
        facts = folder.finish()
    if not sum(facts["dialogues"].values()):
        raise UserError(
            f"no dialogue could be recorded: {facts['left out']}. Lower `turns`, or change `split`."
        )
    return facts


def _annotated(arguments: list[str], out: Path) -> dict[str, Any]:
    variants = whole_number("variants", take(arguments, "variants") or 1)
    if not arguments or "=" in arguments[0]:
        raise UserError("`annotate` needs a folder of recordings as its first argument.")
    source = Path(arguments.pop(0))
    if source.resolve() == out.resolve():
        raise UserError(f"out={out} is the folder that is annotated. Change `out`.")
    settings = compose(["method=base", *arguments])
    with closing(make_roles(settings, out / "llm.jsonl")) as roles:
        counts = annotate(source, out, roles, variants, log_line)
        usage = roles.usage()
        return {**counts, "usage": usage, "per item": cost_per_item(usage, counts["items"])}


if __name__ == "__main__":
    sys.exit(main())
