"""Which runs a command is about: those at places (run folders, folders that contain some, files of
records) that filters leave, as they are typed: `method=trace,grpo budget=640`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import brief, reason
from trace_bench.core.text import visible
from trace_bench.results.folder import read_run
from trace_bench.results.run import DAMAGE, Run, read_records

RUN_FILES = ("summary.json", "ledger.jsonl", "evaluation.jsonl")
MOST_NAMED = 12
COVERAGE = 0.9
"""The share of held-out episodes that must have a score."""


@dataclass(frozen=True)
class Selection:
    """The runs that a command is about, and what could not be used."""

    runs: tuple[Run, ...]
    skipped: tuple[str, ...] = ()


def select(arguments: Sequence[str]) -> Selection:
    """The runs that places and filters leave; what is left out is listed on stderr. UserError."""
    places, filters = split(arguments)
    selection = find(places)
    say("skipped", selection.skipped)
    return replace(selection, runs=choose(selection.runs, filters))


def say(what: str, lines: Iterable[str]) -> None:
    """Prints what a command did with the runs, beside its output."""
    for text in lines:
        print(" ".join(visible(f"{what}: {text}").splitlines()), file=sys.stderr)


def find(places: Sequence[Path]) -> Selection:
    """The runs of all folders at or below `places`, and of files of records named there. Skipped
    and named are folders that are unfinished, damaged or edited, and runs that were there before.
    UserError for a place that does not exist."""
    runs: dict[str, Run] = {}
    skipped: list[str] = []
    for place in places:
        for run in _at(place, skipped):
            key = run.fingerprint or f"unnamed {len(runs)}"
            if runs.setdefault(key, run) is not run:
                where = run.folder or place
                skipped.append(f"{where}: run {run.fingerprint} is there already, counted once")
    return Selection(tuple(runs.values()), tuple(skipped))


def _at(place: Path, skipped: list[str]) -> Iterator[Run]:
    """Runs of a file, or the finished ones at or below a folder; `skipped` names others."""
    try:
        there, file = place.exists(), place.is_file()
    except OSError as error:
        raise UserError(f"{brief(place)} cannot be read: {reason(error)}.") from error
    if not there:
        raise UserError(f"{place} does not exist; name run folders or record files.")
    if file:
        yield from read_records(place)
        return
    for folder in run_folders(place, skipped):
        try:
            with damage(folder):
                run = read_run(folder)
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


def run_folders(place: Path, skipped: list[str]) -> Iterator[Path]:
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


def check_coverage(runs: Sequence[Run]) -> None:
    """Raises UserError for runs that lost so much that the rest says little."""
    poor = [r for r in runs if r.coverage < COVERAGE]
    if poor:
        named = ", ".join(f"run {r.fingerprint} ({r.coverage:.0%})" for r in poor[:5])
        raise UserError(
            f"{len(poor)} of {len(runs)} runs have a score for less than {COVERAGE:.0%} of their "
            f"held-out episodes: {named}. Start them again: what was lost is run again."
        )


# -- filters ---------------------------------------------------------------------------------------

_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_COMMA = re.compile(r",(?![^\[]*\])")  # but not one within [a,b]
Filters = Mapping[str, tuple[str, ...]]
"""The allowed values by key."""


def split(arguments: Sequence[str]) -> tuple[list[Path], Filters]:
    """The places and the filters among arguments: `name=value`, unless there is such a file. Raises
    UserError for a filter without a value."""
    places: list[Path] = []
    filters: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        typed, mark, text = argument.partition("=")
        if not mark or not _KEY.fullmatch(typed) or Path(argument).exists():
            places.append(Path(argument))
            continue
        key, values = recorded(typed), tuple(filter(None, map(str.strip, _COMMA.split(text))))
        if not values:
            raise UserError(f"the filter {argument} names no value; write {typed}=VALUE[,VALUE].")
        filters[key] = (*filters.get(key, ()), *values)
    return places, filters


def choose(runs: Sequence[Run], filters: Filters) -> tuple[Run, ...]:
    """The runs that no filter leaves out. UserError for a key or a value that no run has."""
    kept = tuple(runs)
    for key, values in filters.items() if runs else ():
        called = {id(run): names(run, key) for run in runs}
        _check(key, values, runs, [some for some in called.values() if some])
        kept = tuple(run for run in kept if {*values} & {*called[id(run)]})
    typed = [_written(key, values) for key, values in filters.items()]
    if runs and not kept:
        raise UserError(
            f"none of the {len(runs)} runs has {' and '.join(typed)} together. "
            "Leave out one of the filters."
        )
    if gone := len(runs) - len(kept):
        say("left out", [f"{gone} of {len(runs)} runs, by the filters {' '.join(typed)}"])
    return kept


def recorded(keys: str) -> str:
    """What runs call settings: `env.size` for `env.options.size`."""
    return keys.replace(".options.", ".")


def as_typed(value: Any) -> str:
    """A setting's value as it is written on a command line."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)


def _written(key: str, values: Sequence[str]) -> str:
    return f"{key}={','.join(values)}"


def _check(
    key: str, values: Sequence[str], runs: Sequence[Run], called: Sequence[Sequence[str]]
) -> None:
    """`called`: what the key is called in the runs that have it."""
    typed = _written(key, values)
    if not called:
        settings = sorted({name for run in runs for name in run.flat})
        raise UserError(
            f"no run has {key!r} to filter by; allowed: {', '.join(SHORT)}, and any setting "
            f"of the runs, such as {', '.join(settings[:3])}. Change the filter {typed}."
        )
    if wrong := [v for v in values if not any(v in some for some in called)]:
        usual = sorted({some[0] for some in called}, key=lambda v: (len(v) * v.isdigit(), v))
        more = f" and {len(usual) - MOST_NAMED} more" if len(usual) > MOST_NAMED else ""
        raise UserError(
            f"no run has {_written(key, wrong)}; there are: "
            f"{', '.join(usual[:MOST_NAMED])}{more}. Change the filter {typed}."
        )


def names(run: Run, key: str) -> tuple[str, ...]:
    """What a run's value of a key may be called, its usual name first; () if it has no such key."""
    return SHORT[key](run) if key in SHORT else _texts(run.flat, key)


def _texts(settings: Mapping[str, object], key: str) -> tuple[str, ...]:
    """A setting's value as it is written in YAML; () if there is none."""
    if key not in settings:
        return ()
    value = settings[key]
    if value is None:
        return ("null", "none")
    return (str(value).lower() if isinstance(value, bool) else as_typed(value),)


SHORT: Mapping[str, Callable[[Run], tuple[str, ...]]] = {
    "method": lambda r: (r.marked, r.method),  # with and without its marks
    "budget": lambda r: (str(r.budget),),
    "seed": lambda r: (str(r.seed),),
    "env": lambda r: _texts(r.settings, "env.name"),
    "suite": lambda r: (r.suite_name,),
}
"""Filters with names of their own; any other is a setting by its full name."""
