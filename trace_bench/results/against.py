"""A method against the best of the others, in every cell of the values of some settings, over how
many capabilities a task needs: a table and a figure; and what each method gains there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.types import grouped
from trace_bench.results import figures, worlds
from trace_bench.results.captions import describe, head, readable
from trace_bench.results.compare import Cell, Difference, cells, check_same_settings, difference
from trace_bench.results.details import kinds_of
from trace_bench.results.groups import as_typed, groups_of
from trace_bench.results.places import Found, say
from trace_bench.results.records import flat_settings
from trace_bench.results.table import Table, estimate, style, write

PAGE = "about_against"
Pair = tuple[Cell, Cell]
"""The method that results show against the others (style.json: `focus`), and the best of these."""


def make_against(found: Found, out: Path, setting: str) -> list[Path]:
    """`setting`: those whose values make the cells, with commas. Raises UserError for runs that
    cannot stand together within a cell, and for a cell without the method or without another."""
    keys = setting.split(",")
    known = {key for record in found.records for key in flat_settings(record)}
    for key in keys:
        if key not in known:
            raise unknown("setting", key, sorted(known), "--setting")
    budget = worlds.one_budget(found, "against")
    pairs: dict[str, Pair] = {}
    gains: dict[str, Mapping[str, Difference]] = {}
    by = grouped(
        found.records, lambda r: ", ".join(as_typed(flat_settings(r).get(k)) for k in keys)
    )
    for name in sorted(by):
        group, *others = groups_of(by[name])
        if others:
            check_same_settings(by[name])
        say("left out", group.left_out)
        gains[name] = worlds.gains_of(group)
        pairs[name] = _pair(name, {m: c for (m, _), c in cells(group.records).items()})
    about = describe(found.records, found.skipped)
    named = " and ".join(keys)
    parts = _parts(pairs)
    differ = {
        part: {
            name: difference(own.on(where), best.on(where)) for name, (own, best) in pairs.items()
        }
        for part, where in parts.items()
    }
    made = [
        _table(pairs, parts, differ, named),
        worlds.table(gains, budget, "against_gains", PAGE),
    ]
    return write(made, out, PAGE, about) + _draw(pairs, differ, named, out / "against")


def _pair(name: str, found: Mapping[str, Cell]) -> Pair:
    focus, control = style().focus, style().control
    others = [cell for method, cell in found.items() if method not in (focus, control)]
    if focus not in found or not others:
        raise UserError(
            f"`against` needs {focus} and another method in every cell, and that of {name} has "
            f"{', '.join(found)}. Name more runs, or other settings in --setting."
        )
    return found[focus], max(others, key=lambda cell: cell.value)


def _parts(pairs: Mapping[str, Pair]) -> dict[str, list[int]]:
    """The places of all tasks, and of those that need so many capabilities, if that is known."""
    records = [r for pair in pairs.values() for cell in pair for r in cell.records]
    needs = next((r.needs for r in records if r.needs), ())
    return {"any": [*range(len(records[0].success))], **kinds_of(needs)}


def _table(
    pairs: Mapping[str, Pair], parts: Mapping[str, Sequence[int]], differ: worlds.Gains, named: str
) -> Table:
    shown, count = worlds.starred(differ)
    rows = tuple(
        (name, *(estimate(cell.interval()) for cell in (own.base, own)),
         best.method, estimate(best.interval()), *(shown(part, name) for part in parts))
        for name, (own, best) in pairs.items()
    )  # fmt: skip
    focus, first = style().focus, next(iter(pairs.values()))[0]
    text = (
        f"{focus} by {named}, and its difference to the best of the others there, paired by task: "
        "on all tasks (any), and on those that need so many capabilities by the suite's own word. "
        f"95 % intervals over tasks and seeds; a star: p below 0.05, Holm-corrected over all "
        f"{count} differences. {head(first.records, PAGE)}"
    )
    columns = (f"{part} ({len(where)} tasks)" for part, where in parts.items())
    header = (named, style().control, focus, "best of the others", "its success", *columns)
    return Table("against", text, header, rows)


def _draw(pairs: Mapping[str, Pair], differ: worlds.Gains, named: str, path: Path) -> list[Path]:
    """A panel a number of capabilities, a row a cell."""
    names = [*pairs][::-1]
    look = style().looks([style().focus])[style().focus]
    size = (1.9 * len(differ) + 2.2, 0.3 * len(names) + 1.2)
    figure, (row,) = figures.panels(1, len(differ), size, sharey=True, sharex=True)
    for axes, (part, own) in zip(row, differ.items(), strict=True):
        axes.axvline(0, color=style().look(style().control).colour, linewidth=0.8, zorder=0.8)
        for place, name in enumerate(names):
            figures.lying(axes, look, place, own[name].interval)
        axes.set_title(f"capabilities needed: {part}")
        axes.set_xlabel("difference in success")
    row[0].set_yticks(range(len(names)), [figures.plain(name) for name in names])
    row[0].set_ylim(-0.6, len(names) - 0.4)
    first = next(iter(pairs.values()))[0]
    caption = (
        f"{look.label} less the best of the other methods in each row, paired by task; rows by "
        f"{named}; panels by how many capabilities a task needs. {readable(first.records)}; "
        f"{figures.INTERVALS}."
    )
    return figures.finish(figure, f"{look.label} against the best of the others", caption, path)
