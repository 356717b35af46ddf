"""Makes folders of recorded dialogues for env=recorded.

    python -m trace_bench.record suite env=toolsandbox split=dialogues out=recordings/phone
    python -m trace_bench.record run runs/RUN out=recordings/rollouts
    python -m trace_bench.record annotate recordings/phone out=recordings/annotated \\
        llm.annotator.by=endpoint llm.shared.base_url=http://127.0.0.1:8000/v1 llm.shared.model=NAME

`suite` replays the references of a split (default: the training split), `run` takes the successful
rollouts that a finished run was charged for. Own settings: `out`, the folder; `count`, the most
dialogues (default: all); `turns`, the fewest turns of the user (default 2); `split`; `variants` of
annotated checklists (default 1). All others are those of a run. A scenario of the development or
the held-out split is never recorded. The same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from trace_bench.core.command import command, told, whole_number
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Suite
from trace_bench.core.summary import Summary
from trace_bench.envs.recorded.data import Record
from trace_bench.llm.roles import cost_per_item
from trace_bench.play.suites import chosen_of, splits_of, tasks_of
from trace_bench.record import dialogues
from trace_bench.record.annotate import annotate
from trace_bench.record.dialogues import Folder
from trace_bench.runner.build import log_line, make_roles, make_suite, run_context
from trace_bench.settings.compose import compose, take
from trace_bench.settings.identity import parts_of
from trace_bench.settings.schema import Settings

COMMANDS = ("suite", "run", "annotate")


@command()
def main(arguments: Sequence[str]) -> int:
    """The exit status: 0, or 2 for wrong input."""
    if told(arguments or ["--help"], __doc__):
        return 0
    found = _carry_out(arguments[0], list(arguments[1:]))
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0


def _carry_out(command: str, arguments: list[str]) -> dict[str, Any]:
    if command not in COMMANDS:
        raise unknown("command", command, COMMANDS, "the first argument")
    out = take(arguments, "out")
    if not out:
        raise UserError("`out` is missing: the folder of the recordings, such as out=recordings/a.")
    if command == "annotate":
        return _annotated(arguments, Path(out))
    count, least = _number(arguments, "count"), _number(arguments, "turns") or 2
    if command == "run":
        return _of_run(arguments, Path(out), count, least)
    return _of_suite(arguments, Path(out), count, least)


def _of_suite(arguments: list[str], out: Path, count: int | None, least: int) -> dict[str, Any]:
    split = take(arguments, "split")
    settings = compose(["method=base", *arguments])
    with _suite(settings) as suite:
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
            "options": dict(settings.env.options), "count": count, "turns": least,
        }  # fmt: skip
        folder = Folder(out, made_by, dialogues.held_out(suite, against))
        return _write(folder, dialogues.of_suite(suite, tasks_of(suite, chosen)), count, least)


def _of_run(arguments: list[str], out: Path, count: int | None, least: int) -> dict[str, Any]:
    if len(arguments) != 1:
        raise UserError(
            f"`run` takes the folder of one finished run beside its settings, not {arguments}."
        )
    source = Path(arguments[0])
    summary = dialogues.summary_of(source)
    with _suite(compose(["method=base", *_environment(summary)])) as suite:
        made_by = {
            "command": "run", "suite": f"{suite.name}/{suite.variant}",
            "run": summary.fingerprint, "count": count, "turns": least,
        }  # fmt: skip
        against = sorted({summary.dev_split, summary.split})
        folder = Folder(out, made_by, dialogues.held_out(suite, against))
        return _write(folder, dialogues.of_run(source, summary), count, least)


def _environment(summary: Summary) -> list[str]:
    """The settings of a run's suite. Raises UserError for one that a name does not identify."""
    if summary.origins.get("env"):
        raise UserError(
            f"the run's environment {summary.env} is not this package's own. Record it with "
            "`python -m trace_bench.record suite env.factory=...`."
        )
    suite = [f"env.suite={summary.suite}"] if summary.suite else []
    return [f"env={summary.env}", *suite]


def _annotated(arguments: list[str], out: Path) -> dict[str, Any]:
    variants = _number(arguments, "variants") or 1
    if not arguments or "=" in arguments[0]:
        raise UserError("`annotate` needs a folder of recordings as its first argument.")
    source = Path(arguments.pop(0))
    if source.resolve() == out.resolve():
        raise UserError(f"out={out} is the folder that is annotated. Change `out`.")
    settings = compose(["method=base", *arguments])
    with closing(make_roles(settings, out / "llm.jsonl")) as roles:
        found: dict[str, Any] = dict(annotate(source, out, roles, variants, log_line))
        usage = roles.usage()
        return {**found, "usage": usage, "per item": cost_per_item(usage, found["items"])}


def _write(
    folder: Folder, found: Iterable[tuple[str, Record | None]], count: int | None, least: int
) -> dict[str, Any]:
    """Appends dialogues until there are `count`."""
    full = count is not None and sum(folder.sizes.values()) >= count
    for identity, record in () if full else found:
        if folder.has(identity):
            continue
        if record is None:
            folder.counts["without success"] += 1
        elif folder.add(record, least) and sum(folder.sizes.values()) == count:
            break
    facts = folder.finish()
    if not sum(facts["dialogues"].values()):
        raise UserError(
            f"no dialogue could be recorded: {facts['left out']}. Lower `turns`, or change `split`."
        )
    return facts


def _suite(settings: Settings) -> closing[Suite]:
    parts = parts_of(settings)
    return closing(make_suite(settings, parts, run_context(settings, parts)))


def _number(arguments: list[str], key: str) -> int | None:
    text = take(arguments, key)
    return None if text is None else whole_number(key, text)


if __name__ == "__main__":
    sys.exit(main())
