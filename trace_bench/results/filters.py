"""Filters that choose among runs, as they are typed: `method=trace,grpo budget=640`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.results.groups import recorded
from trace_bench.results.places import Selection, find, say
from trace_bench.results.rows import as_typed
from trace_bench.results.run import Run

_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_COMMA = re.compile(r",(?![^\[]*\])")  # but not one within [a,b]
_MOST_NAMED = 12

Filters = Mapping[str, tuple[str, ...]]
"""The allowed values by key."""


def select(arguments: Sequence[str], rule: str | None = None) -> Selection:
    """The runs that places and filters leave; what is left out is listed on stderr. UserError."""
    places, filters = split(arguments)
    selection = find(places, rule)
    say("skipped", selection.skipped)
    return choose([selection], filters)[0]


def split(arguments: Sequence[str]) -> tuple[list[Path], Filters]:
    """The places and the filters among arguments: `name=value`, unless there is such a file. Raises
    UserError for a filter without a value and for two of one key."""
    places: list[Path] = []
    filters: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        typed, mark, text = argument.partition("=")
        if not mark or not _KEY.fullmatch(typed) or Path(argument).exists():
            places.append(Path(argument))
            continue
        key = recorded(typed)
        values = tuple(filter(None, (v.strip() for v in _COMMA.split(text))))
        if not values:
            raise UserError(f"the filter {argument} names no value; write {typed}=VALUE[,VALUE].")
        if key in filters:
            raise UserError(
                f"the filter {key} is given twice; name its values together: "
                f"{_written(key, (*filters[key], *values))}."
            )
        filters[key] = values
    return places, filters


def choose(selections: Sequence[Selection], filters: Filters) -> list[Selection]:
    """The selections without the runs that a filter leaves out. Raises UserError for a key or a
    value that no run has: they are typing errors."""
    runs = [run for selection in selections for run in selection.runs]
    kept = runs
    for key, values in filters.items() if runs else ():
        called = {id(run): names(run, key) for run in runs}
        _check(key, values, runs, [some for some in called.values() if some])
        kept = [run for run in kept if {*values} & {*called[id(run)]}]
    typed = [_written(key, values) for key, values in filters.items()]
    if runs and not kept:
        raise UserError(
            f"none of the {len(runs)} runs has {' and '.join(typed)} together. "
            "Leave out one of the filters."
        )
    if gone := len(runs) - len(kept):
        say("left out", [f"{gone} of {len(runs)} runs, by the filters {' '.join(typed)}"])
    left = {id(run) for run in kept}
    return [replace(s, runs=tuple(r for r in s.runs if id(r) in left)) for s in selections]


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
    every = {name for some in called for name in some}
    if wrong := [v for v in values if v not in every]:
        usual = {some[0] for some in called}
        there = sorted(usual, key=lambda v: (len(v), v) if v.isdigit() else (0, v))
        more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
        raise UserError(
            f"no run has {_written(key, wrong)}; there are: "
            f"{', '.join(there[:_MOST_NAMED])}{more}. Change the filter {typed}."
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


def _env(run: Run) -> tuple[str, ...]:
    """With the name that a suite of one's own gives itself."""
    name = run.suite.rpartition("/")[0]
    return (*_texts(run.settings, "env.name"), *([name] if name else []))


def _suite(run: Run) -> tuple[str, ...]:
    env, _, variant = run.suite_name.rpartition("/")
    if run.suite:
        return run.suite, env, variant, str(run.settings["env.name"])
    return (variant, f"{env}/{variant}") if env else (variant,)


def _factory(run: Run) -> tuple[str, ...]:
    """As it was given: module:attribute."""
    s = run.settings
    if "env.origin.module" in s:
        return (f"{s['env.origin.module']}:{s['env.origin.attribute']}",)
    return _texts(s, "env.factory")


SHORT: Mapping[str, Callable[[Run], tuple[str, ...]]] = {
    "method": lambda r: (r.marked, r.method),  # with and without its marks
    "budget": lambda r: (str(r.budget),),
    "seed": lambda r: (str(r.seed),),
    "env": _env,
    "env.factory": _factory,
    "suite": _suite,
    "split": lambda r: _texts(r.settings, "evaluation.split"),
    "model": lambda r: _texts(r.settings, "model.name"),
}
"""Filters with names of their own; any other is a setting by its full name."""
