"""Which runs a command is about: records found at places (run folders, folders that contain some,
files of records), and filters that choose among them (`method=trace,grpo budget=640`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.store import reason, shown
from trace_bench.core.text import visible
from trace_bench.results.compare import DEFAULTS
from trace_bench.results.groups import as_typed, recorded, value_of
from trace_bench.results.records import DAMAGE, DEFAULT, Record, flat_settings, read_records
from trace_bench.results.runs import read_run

RUN_FILES = ("summary.json", "ledger.jsonl", "evaluation.jsonl")
_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_COMMA = re.compile(r",(?![^\[]*\])")  # but not one within [a,b]
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Found:
    """The records, and what could not be used."""

    records: tuple[Record, ...]
    skipped: tuple[str, ...]


def find(places: Sequence[Path], rule: str | None = None) -> Found:
    """Records of all run folders at or below `places`, and of record files (*.jsonl) named there.
    `rule` None is the default rule for folders, for files the one that they were made by. Skipped
    and named are folders that are unfinished, damaged or edited, and runs that were there before.
    UserError for a place that does not exist, and for a record file of another rule."""
    found: dict[str, Record] = {}
    skipped: list[str] = []
    for place in places:
        for record in _at(place, rule, skipped):
            key = record.fingerprint or f"unnamed {len(found)}"
            if found.setdefault(key, record) is not record:
                where = record.folder or place
                skipped.append(f"{where}: run {record.fingerprint} is there already, counted once")
    return Found(tuple(found.values()), tuple(skipped))


def _at(place: Path, rule: str | None, skipped: list[str]) -> Iterator[Record]:
    """Records of a file, or of the finished runs at or below a folder; `skipped` names others."""
    try:
        there, file = place.exists(), place.is_file()
    except OSError as error:
        raise UserError(f"{shown(place)} cannot be read: {reason(error)}.") from error
    if not there:
        raise UserError(f"{place} does not exist; name run folders or record files.")
    if file:
        records = read_records(place)
        if rule is not None and (other := {r.rule for r in records} - {rule}):
            raise UserError(
                f"{place} holds records by the rule {', '.join(sorted(other))}; another rule needs "
                "the attempts themselves. Name the run folders."
            )
        yield from records
        return
    for folder in _folders(place, skipped):
        try:
            yield read_run(folder, rule or DEFAULT)
        except UserError as error:
            skipped.append(str(error))
        except DAMAGE as error:
            skipped.append(f"{folder}: damaged ({type(error).__name__}: {str(error)[:200]})")


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
            skipped.append(f"{shown(folder)}: cannot be read ({type(error).__name__})")


def check_coverage(records: Sequence[Record], least: float) -> None:
    """Raises UserError for runs that lost so much that the rest says little."""
    poor = [r for r in records if r.coverage < least]
    if poor:
        shown = ", ".join(f"run {r.fingerprint} ({r.coverage:.0%})" for r in poor[:5])
        raise UserError(
            f"{len(poor)} of {len(records)} runs have a score for less than {least:.0%} of their "
            f"held-out episodes: {shown}. Run them again, count what was lost as failures "
            "(regrade rule=zero), or allow a smaller share with --coverage."
        )


def say(what: str, lines: Iterable[str]) -> None:
    """Prints what a command did with the runs, beside its output."""
    for text in lines:
        print(" ".join(visible(f"{what}: {text}").splitlines()), file=sys.stderr)


# -- filters --------------------------------------------------------------------------------------


Filters = Mapping[str, tuple[str, ...]]
"""The allowed values by key."""


def split(arguments: Sequence[str]) -> tuple[list[Path], Filters]:
    """The places and the filters among arguments: `name=value`, unless there is such a file. Raises
    UserError for a filter without a value and for two of one key."""
    places: list[Path] = []
    filters: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        typed, mark, given = argument.partition("=")
        if not mark or not _KEY.fullmatch(typed) or Path(argument).exists():
            places.append(Path(argument))
            continue
        key = recorded(typed)
        values = tuple(filter(None, (v.strip() for v in _COMMA.split(given))))
        if not values:
            raise UserError(f"the filter {argument} names no value; write {typed}=VALUE[,VALUE].")
        if key in filters:
            raise UserError(
                f"the filter {key} is given twice; name its values together: "
                f"{_written(key, (*filters[key], *values))}."
            )
        filters[key] = values
    return places, filters


def _written(key: str, values: Sequence[str]) -> str:
    return f"{key}={','.join(values)}"


def choose(found: Sequence[Found], filters: Filters) -> list[Found]:
    """What was found without the records that a filter leaves out. Raises UserError for a key or a
    value that no run has: they are typing errors."""
    records = [r for f in found for r in f.records]
    kept = {id(r): r for r in records}
    for key, values in filters.items() if records else ():
        called = {id(r): names(r, key, records) for r in records}
        _check(key, values, records, [own for own in called.values() if own])
        kept = {i: r for i, r in kept.items() if {*values} & {*called[i]}}
    shown = [_written(key, values) for key, values in filters.items()]
    if records and not kept:
        raise UserError(
            f"none of the {len(records)} runs has {' and '.join(shown)} together. "
            "Leave out one of the filters."
        )
    if gone := len(records) - len(kept):
        say("left out", [f"{gone} of {len(records)} runs, by the filters {' '.join(shown)}"])
    return [replace(f, records=tuple(r for r in f.records if id(r) in kept)) for f in found]


def _check(
    key: str, values: Sequence[str], records: Sequence[Record], known: Sequence[Sequence[str]]
) -> None:
    """`known`: what the key is called in the records that have it."""
    given = _written(key, values)
    if not known:
        own = sorted({name for r in records for name in flat_settings(r)})
        raise UserError(
            f"no run has {key!r} to filter by; allowed: {', '.join(SHORT)}, and any setting "
            f"of the runs, such as {', '.join(own[:3])}. Change the filter {given}."
        )
    every = {name for found in known for name in found}
    if wrong := [v for v in values if v not in every]:
        there = {found[0] for found in known}
        shown = sorted(there, key=lambda v: (len(v), v) if v.isdigit() else (0, v))
        more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
        raise UserError(
            f"no run has {_written(key, wrong)}; there are: "
            f"{', '.join(shown[:_MOST_SHOWN])}{more}. Change the filter {given}."
        )


def names(record: Record, key: str, records: Sequence[Record]) -> tuple[str, ...]:
    """What a run's value of a key may be called, its usual name first; () if it has no such key.
    `records`: all that were found, which tell whether a setting that it does not name has its
    default there."""
    if key in SHORT:
        return SHORT[key](record)
    found = _texts(flat_settings(record), key)
    if found or key not in DEFAULTS:
        return found
    value = value_of(record, key, records)
    return () if value is None else _texts({key: value}, key)


def _texts(settings: Mapping[str, object], key: str) -> tuple[str, ...]:
    """A setting's value as it is written in YAML; () if there is none."""
    if key not in settings:
        return ()
    value = settings[key]
    if value is None:
        return ("null", "none")
    return (str(value).lower() if isinstance(value, bool) else as_typed(value),)


def _env(record: Record) -> tuple[str, ...]:
    """With the name that a suite of one's own gives itself."""
    own = record.suite.rpartition("/")[0]
    return (*_texts(record.settings, "env.name"), *([own] if own else []))


def _suite(record: Record) -> tuple[str, ...]:
    env, _, variant = record.suite_name.rpartition("/")
    if record.suite:
        return record.suite, env, variant, str(record.settings["env.name"])
    return (variant, f"{env}/{variant}") if env else (variant,)


def _factory(record: Record) -> tuple[str, ...]:
    """As it was given: module:attribute."""
    s = record.settings
    if "env.origin.module" in s:
        return (f"{s['env.origin.module']}:{s['env.origin.attribute']}",)
    return _texts(s, "env.factory")


SHORT: Mapping[str, Callable[[Record], tuple[str, ...]]] = {
    "method": lambda r: (r.label, r.method),  # with and without its marks
    "budget": lambda r: (str(r.budget),),
    "seed": lambda r: (str(r.seed),),
    "env": _env,
    "env.factory": _factory,
    "suite": _suite,
    "split": lambda r: _texts(r.settings, "evaluation.split"),
    "model": lambda r: _texts(r.settings, "model.name"),
}
"""Filters with names of their own; any other is a setting by its full name."""
