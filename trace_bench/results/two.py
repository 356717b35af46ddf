"""Two finished runs side by side: what their settings differ in, each against the base agent that
it evaluated itself, and one against the other. Also for two runs of one method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.results.beginnings import began_with
from trace_bench.results.compare import Cell, Difference, base_of, difference
from trace_bench.results.places import find
from trace_bench.results.records import Record, flat_settings
from trace_bench.results.table import Table
from trace_bench.results.uncertainty import ASSUMED, can_show, repeats_of

_SAME_TASKS = ("env.name", "env.suite", "evaluation.split", "evaluation.limit")


def the_run(place: Path) -> Record:
    """The one finished run at a place. Raises UserError for none and for several."""
    found = find([place])
    if len(found.records) != 1:
        why = f" ({'; '.join(found.skipped)})" if found.skipped else ""
        raise UserError(
            f"{place} holds {len(found.records)} finished runs{why}; compare takes two places with "
            "one run each."
        )
    return found.records[0]


def compare_two(a: Record, b: Record) -> str:
    """The comparison as text. Raises UserError for runs with other held-out tasks or of other
    suites, and for one run named twice."""
    if a.fingerprint and a.fingerprint == b.fingerprint:
        raise UserError(f"run {a.fingerprint} is named twice; name two runs.")
    _check_tasks(a, b)
    table, made = _table(a, b)
    lines = [*_settings(a, b), "", table.markdown(), *_what_it_can_show(a, b)]
    if made.uncertainty.seeds == 0:
        lines.append("One seed each: the interval and p are over tasks, for these two seeds.")
    return "\n".join(lines)


def _check_tasks(a: Record, b: Record) -> None:
    differ = {
        key: (a.settings.get(key), b.settings.get(key))
        for key in _SAME_TASKS
        if a.settings.get(key) != b.settings.get(key)
    }
    if differ or a.tasks != b.tasks:
        shown = "; ".join(f"{key} is {one} and {two}" for key, (one, two) in differ.items())
        raise UserError(
            f"runs {a.fingerprint} and {b.fingerprint} were evaluated on other held-out tasks"
            f"{f' ({shown})' if shown else ''}, so they cannot be paired. Run one of them again "
            "with the suite, evaluation.split and evaluation.limit of the other."
        )


def _settings(a: Record, b: Record) -> list[str]:
    one, two = (
        {
            **{"method": r.method, "begins with": began_with(r) or "the bare model"},
            **{"budget": r.budget, "seed": r.seed, "rule": r.rule},
            **flat_settings(r),
        }
        for r in (a, b)
    )
    absent = "not a setting of it"
    differ = [
        f"  {key}: {one.get(key, absent)} | {two.get(key, absent)}"
        for key in dict.fromkeys([*one, *two])
        if one.get(key, absent) != two.get(key, absent)
    ]
    head = f"run A {a.fingerprint} ({a.method}) and run B {b.fingerprint} ({b.method})"
    if not differ:
        return [f"{head} have the same settings."]
    return [f"{head} differ in (A | B):", *differ]


def _table(a: Record, b: Record) -> tuple[Table, Difference]:
    cells = [Cell(r.method, r.budget, (r,)) for r in (a, b)]
    bases = [base_of(cell) for cell in cells]
    rows = [
        _row(f"A: {a.method}", cells[0], difference(cells[0], bases[0])),
        _row(f"B: {b.method}", cells[1], difference(cells[1], bases[1])),
        _row("base of A", bases[0], None),
        _row("base of B", bases[1], None),
    ]
    gains = difference(*cells)
    rows.append(_alone("A less B", gains))
    rows.append(_alone("base of A less base of B", difference(*bases)))
    text = (
        f"{len(a.success)} held-out tasks. Differences are paired by task, with 95 % intervals; p "
        "by sign flips over tasks, of each comparison alone."
    )
    header = ("", "success", "less its own base", "p")
    return Table("compare", text, header, tuple(rows)), gains


def _row(name: str, cell: Cell, found: Difference | None) -> tuple[str, ...]:
    i = cell.interval()
    shown = f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]"
    return (name, shown, *(("", "") if found is None else _shown(found)))


def _alone(name: str, found: Difference) -> tuple[str, ...]:
    value, p = _shown(found)
    return (name, value, "", p)


def _shown(found: Difference) -> tuple[str, str]:
    d = found.interval
    p = "<0.0001" if found.p < 0.0001 else f"{found.p:.4f}"
    return f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]", p


def _what_it_can_show(a: Record, b: Record) -> list[str]:
    """From the trials of the two runs, from the two bases where they are repeats of one agent that
    does not always do the same, else from the assumption."""
    trials = int(a.settings.get("evaluation.trials", 1))
    found = repeats_of([a, b])
    if found is ASSUMED and _same_base(a, b):
        ends = base_of(Cell(a.method, a.budget, (a,))), base_of(Cell(b.method, b.budget, (b,)))
        twins = [cell.records[0] for cell in ends]
        found = repeats_of([twins[0], _as(twins[1], twins[0])])
    return [can_show(len(a.success), 1, trials, found)]


def _same_base(a: Record, b: Record) -> bool:
    """Whether both ran the same agent to begin with."""
    names = [k for k in {**a.settings, **b.settings} if k.startswith(("model.", "policy."))]
    return all(a.settings.get(name) == b.settings.get(name) for name in names)


def _as(record: Record, other: Record) -> Record:
    """The record as one of the other's settings."""
    own = other.method_settings
    return replace(record, settings=other.settings, method_settings=own, budget=other.budget)


def compare_places(places: Sequence[str]) -> str:
    """`compare_two` of the runs at two places. Raises UserError for another number of places."""
    if len(places) != 2:
        raise UserError(f"compare takes two runs, got {len(places)}: compare RUN_A RUN_B.")
    return compare_two(*(the_run(Path(place)) for place in places))
