"""Runs at places: run folders, folders that contain some, files of records."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.store import brief, reason
from trace_bench.core.text import visible
from trace_bench.results.folder import read_run
from trace_bench.results.records import DAMAGE, read_records
from trace_bench.results.rules import DEFAULT
from trace_bench.results.run import Run

RUN_FILES = ("summary.json", "ledger.jsonl", "evaluation.jsonl")


@dataclass(frozen=True)
class Selection:
    """The runs that a command is about, and what could not be used."""

    runs: tuple[Run, ...]
    skipped: tuple[str, ...]


def find(places: Sequence[Path], rule: str | None = None) -> Selection:
    """The runs of all folders at or below `places`, and of files of records named there. `rule`
    None is the default rule for folders, for files the one that they were made by. Skipped and
    named are folders that are unfinished, damaged or edited, and runs that were there before.
    UserError for a place that does not exist, and for a file of records of another rule."""
    runs: dict[str, Run] = {}
    skipped: list[str] = []
    for place in places:
        for run in _at(place, rule, skipped):
            key = run.fingerprint or f"unnamed {len(runs)}"
            if runs.setdefault(key, run) is not run:
                where = run.folder or place
                skipped.append(f"{where}: run {run.fingerprint} is there already, counted once")
    return Selection(tuple(runs.values()), tuple(skipped))


def _at(place: Path, rule: str | None, skipped: list[str]) -> Iterator[Run]:
    """Runs of a file, or the finished ones at or below a folder; `skipped` names others."""
    try:
        there, file = place.exists(), place.is_file()
    except OSError as error:
        raise UserError(f"{brief(place)} cannot be read: {reason(error)}.") from error
    if not there:
        raise UserError(f"{place} does not exist; name run folders or record files.")
    if file:
        runs = read_records(place)
        if rule is not None and (other := {r.rule for r in runs} - {rule}):
            raise UserError(
                f"{place} holds records by the rule {', '.join(sorted(other))}; another rule needs "
                "the attempts themselves. Name the run folders."
            )
        yield from runs
        return
    for folder in _folders(place, skipped):
        try:
            with damage(folder):
                run = read_run(folder, rule or DEFAULT)
            yield run
        except UserError as error:
            skipped.append(str(error))


@contextmanager
def damage(folder: Path) -> Iterator[None]:
    """What goes wrong in the block, by what the folder holds, is a UserError that says so."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{brief(folder)} cannot be read: {reason(error)}.") from error
    except DAMAGE as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise UserError(f"{brief(folder)}: damaged ({why})") from error


def _folders(place: Path, skipped: list[str]) -> Iterator[Path]:
    """Run folders, in order, none of them searched; `skipped` names those that should be one."""
    left, seen = [place], set()
    while left:
        folder = left.pop()
        try:
            real = folder.resolve()
            if real in seen:  # by a link, which may lead in a circle
                continue
            seen.add(real)
            if (folder / "config.yaml").is_file():
                yield folder
                continue
            inside = sorted(folder.iterdir())
            if not inside or any(p.name in RUN_FILES for p in inside):
                skipped.append(f"{folder}: no run (no config.yaml)")
                continue
            left += [child for child in reversed(inside) if child.is_dir()]
        except (OSError, RuntimeError) as error:  # of `resolve`, for links that end nowhere
            skipped.append(f"{brief(folder)}: cannot be read ({type(error).__name__})")


def check_coverage(runs: Sequence[Run], least: float) -> None:
    """Raises UserError for runs that lost so much that the rest says little."""
    poor = [r for r in runs if r.coverage < least]
    if poor:
        named = ", ".join(f"run {r.fingerprint} ({r.coverage:.0%})" for r in poor[:5])
        raise UserError(
            f"{len(poor)} of {len(runs)} runs have a score for less than {least:.0%} of their "
            f"held-out episodes: {named}. Run them again, count what was lost as failures "
            "(regrade rule=zero), or allow a smaller share with --coverage."
        )


def say(what: str, lines: Iterable[str]) -> None:
    """Prints what a command did with the runs, beside its output."""
    for text in lines:
        print(" ".join(visible(f"{what}: {text}").splitlines()), file=sys.stderr)
