"""Filters: which of the runs that were found are meant (`method=trace,grpo budget=640`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.results.records import Record, flat_settings

_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Filter:
    """Keeps runs whose `key` has one of the values."""

    key: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}={','.join(self.values)}"


def split(arguments: Sequence[str]) -> tuple[list[str], list[Filter]]:
    """The places and the filters among arguments. `name=value` is a filter, unless there is a file
    or folder of that name. Raises UserError for a filter without a value and for two of one key."""
    places: list[str] = []
    filters: dict[str, Filter] = {}
    for argument in arguments:
        key, mark, given = argument.partition("=")
        if not mark or not _KEY.fullmatch(key) or Path(argument).exists():
            places.append(argument)
            continue
        values = tuple(filter(None, (v.strip() for v in given.split(","))))
        if not values:
            raise UserError(f"the filter {argument} names no value; write {key}=VALUE[,VALUE].")
        if key in filters:
            raise UserError(
                f"the filter {key} is given twice; name its values together: "
                f"{key}={','.join((*filters[key].values, *values))}."
            )
        filters[key] = Filter(key, values)
    return places, list(filters.values())


def choose(
    records: Sequence[Record], filters: Sequence[Filter]
) -> tuple[tuple[Record, ...], list[str]]:
    """The records that pass all filters, and a line that says how many did not. Raises UserError
    for a key that no run has and for a value that no run has: they are typing errors."""
    for each in filters:
        _check(each, records)
    kept = tuple(r for r in records if all(_passes(r, f) for f in filters))
    if not kept and records:
        raise UserError(
            f"none of the {len(records)} runs has {' and '.join(map(str, filters))} together. "
            "Leave out one of the filters."
        )
    gone = len(records) - len(kept)
    shown = " ".join(map(str, filters))
    return kept, [f"{gone} of {len(records)} runs, by the filters {shown}"] if gone else []


def _passes(record: Record, given: Filter) -> bool:
    return not set(given.values).isdisjoint(names(record, given.key))


def _check(given: Filter, records: Sequence[Record]) -> None:
    if not records:
        return
    known = [found for r in records if (found := names(r, given.key))]
    if not known:
        own = sorted({key for r in records for key in flat_settings(r)})
        raise UserError(
            f"no run has {given.key!r} to filter by; allowed: {', '.join(SHORT)}, and any setting "
            f"of the runs, such as {', '.join(own[:3])}. Change the filter {given}."
        )
    there = {found[0] for found in known}
    every = {name for found in known for name in found}
    if wrong := [v for v in given.values if v not in every]:
        shown = sorted(there, key=lambda v: (len(v), v) if v.isdigit() else (0, v))
        more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
        raise UserError(
            f"no run has {given.key}={','.join(wrong)}; there are: "
            f"{', '.join(shown[:_MOST_SHOWN])}{more}. Change the filter {given}."
        )


def names(record: Record, key: str) -> tuple[str, ...]:
    """What a run's value of a key may be called, its usual name first; () if it has no such key."""
    if key in SHORT:
        return SHORT[key](record)
    settings = flat_settings(record)
    return _texts(settings[key]) if key in settings else ()


def _texts(value: object) -> tuple[str, ...]:
    """A setting's value as it is written in YAML."""
    if value is None:
        return ("null", "none")
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (str(value),)


def _method(record: Record) -> tuple[str, ...]:
    """With and without its marks."""
    return record.label, record.method


def _env(record: Record) -> tuple[str, ...]:
    """With the name that a suite of one's own gives itself."""
    own = record.suite.rpartition("/")[0]
    return (*_texts(record.settings["env.name"]), *([own] if own else []))


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
    return _texts(s["env.factory"]) if "env.factory" in s else ()


def _setting(key: str) -> Callable[[Record], tuple[str, ...]]:
    return lambda r: _texts(r.settings[key]) if key in r.settings else ()


SHORT: Mapping[str, Callable[[Record], tuple[str, ...]]] = {
    "method": _method,
    "budget": lambda r: (str(r.budget),),
    "seed": lambda r: (str(r.seed),),
    "env": _env,
    "env.factory": _factory,
    "suite": _suite,
    "split": _setting("evaluation.split"),
    "model": _setting("model.name"),
}
"""Filters with names of their own; any other is a setting by its full name."""
