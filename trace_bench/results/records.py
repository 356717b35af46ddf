"""Files of records: one line a run, small enough to commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.decode import Unreadable, brief, convert
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines
from trace_bench.core.types import CHARGED, to_json
from trace_bench.results.run import FORMAT, Run

DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What reading raises where a file holds something else than a run has written."""
CAPTION = ("env.name", "env.suite", "evaluation.split", "protocol")
"""Settings that stand in captions."""
FREE_TEXT = ("settings", "method_settings", "source", "versions", "machine", "about")
"""The fields whose texts stand in no table."""
OPTIONAL = (
    "about", "beginning", "needs", "suite", "source", "parameters", "marks", "machine", "worlds",
)  # fmt: skip
"""The fields that a line has only where they say something."""


def read_records(path: Path) -> list[Run]:
    """The runs of a file. Raises UserError naming file and line of one that is not a record."""
    out = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.get("format") != FORMAT:
            raise UserError(
                f"{path}, line {number} has format {line.get('format')!r}; this version reads "
                f"{FORMAT}."
            )
        try:
            out.append(run_of(line))
        except DAMAGE as error:
            raise UserError(f"{path}, line {number} is not a record ({error}).") from error
    return out


def as_line(run: Run) -> str:
    """A run as a line of a file of records; whole successes as integers, to keep it small."""
    line = to_json(replace(run, folder=None))
    del line["row"], line["folder"]
    for name in OPTIONAL:
        if not line[name]:
            del line[name]
    for name in ("success", "base"):
        line[name] = [int(v) if v is not None and v == int(v) else v for v in line[name]]
    return json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n"


def run_of(data: Mapping[str, Any]) -> Run:
    """The run that plain data hold, which strangers may have made; behind this check no table or
    figure needs to look again. Raises one of `DAMAGE`."""
    keys = Run.__annotations__  # an empty value under another key says nothing
    run = convert({key: value for key, value in data.items() if value or key in keys}, Run)
    json.dumps(data, ensure_ascii=False, allow_nan=False).encode()  # UTF-8, no NaN
    _check_names(run, data)
    _check_agreement(run)
    return run


def _check_names(run: Run, data: Mapping[str, Any]) -> None:
    """Raises Unreadable for what would stand in a table and is no short text."""
    settings = run.settings
    free = [[*data.get(name, ())] for name in FREE_TEXT]
    listed = [v for k, v in data.items() if k not in FREE_TEXT]
    names: list[Any] = [*_texts([listed, free]), run.label]
    names += [settings.get(n) for n in CAPTION if n != "env.suite" or settings.get(n) is not None]
    names += [run.source.get("training.suite")] if run.source else []
    for name in names:
        if not (isinstance(name, str) and name.isprintable() and len(name) <= 200):
            raise Unreadable(f"{brief(name)} is no short printable text")


def _check_agreement(run: Run) -> None:
    """Raises Unreadable where one field contradicts another."""
    settings, tasks = run.settings, len(run.success)
    counts = [settings.get("evaluation.trials", 1), settings.get("env.train_tasks") or 0]
    counts += [run.method_settings.get("max_capabilities", 0)]
    for what, fine in (
        ("accounting", settings.get("accounting", "strict") in CHARGED),
        ("base", len(run.base) == tasks),
        ("success", any(v is not None for v in run.success)),
        ("needs", len(run.needs) in (0, tasks)),
        ("worlds", len(run.worlds) in (0, tasks)),
        ("votes", all(some <= of for some, of in run.votes.values())),
        ("a count in the settings", all(type(n) is int and 0 <= n <= 2**53 for n in counts)),
    ):
        if not fine:
            raise Unreadable(f"`{what}` does not agree with the rest of it")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in (*value, *value.values()) if isinstance(value, Mapping) else value:
            yield from _texts(part)
