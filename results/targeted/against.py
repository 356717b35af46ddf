"""TRACE against the best of the other methods, in every cell of the values of some settings, over
how many capabilities a task needs: a table and a figure; and what each method gains there.

    PYTHONPATH=.. python against.py PLACE|FILTER... --setting SETTING,... --out FOLDER"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common import Gains, check_keys, gains, gains_table, one_budget, script

from trace_bench.core.errors import UserError
from trace_bench.core.types import grouped
from trace_bench.results import figures
from trace_bench.results.captions import by_total, describe, head, readable
from trace_bench.results.cells import Cell, Difference, cells, difference, starred
from trace_bench.results.groups import check_same_settings, groups_of
from trace_bench.results.places import Selection, as_typed, say
from trace_bench.results.table import Table, style, write
from trace_bench.results.tables import kinds_of

PAGE = "about_against"
Pair = tuple[Cell, Cell]
"""The method that results show against the others (style.json: `focus`), and the best of these."""


def make(selection: Selection, out: Path, keys: Sequence[str]) -> list[Path]:
    """Raises UserError for runs that cannot stand together within a cell, for several budgets, and
    for a cell without the method or without another."""
    runs = by_total(selection.runs)
    check_keys(runs, keys, "--setting")
    budget = one_budget(runs)
    pairs: dict[str, Pair] = {}
    of_cell: dict[str, Mapping[str, Difference]] = {}
    by = grouped(runs, lambda r: ", ".join(as_typed(r.flat.get(k)) for k in keys))
    for name in sorted(by):
        group, *others = groups_of(by[name])
        if others:
            check_same_settings(by[name])
        say("left out", group.left_out)
        grid = cells(group.runs)
        of_cell[name] = gains(grid)
        pairs[name] = _pair(name, {method: cell for (method, _), cell in grid.items()})
    settings = " and ".join(keys)
    parts = _parts(pairs)
    differ = {
        part: {
            name: difference(mine.on(where), best.on(where)) for name, (mine, best) in pairs.items()
        }
        for part, where in parts.items()
    }
    whole = gains_table("against_gains", of_cell, budget, PAGE)
    tables = [_table(pairs, parts, differ, settings), whole]
    written = write(tables, out, PAGE, [describe(runs, selection.skipped)])
    return written + _draw(pairs, differ, settings, out / "against")


def _pair(name: str, by_method: Mapping[str, Cell]) -> Pair:
    focus, control = style().focus, style().control
    others = [cell for method, cell in by_method.items() if method not in (focus, control)]
    if focus not in by_method or not others:
        raise UserError(
            f"`against` needs {focus} and another method in every cell, and that of {name} has "
            f"{', '.join(by_method)}. Name more runs, or other settings in --setting."
        )
    return by_method[focus], max(others, key=lambda cell: cell.value)


def _parts(pairs: Mapping[str, Pair]) -> dict[str, list[int]]:
    """The places of all tasks, and of those that need so many capabilities, if that is known."""
    runs = [r for pair in pairs.values() for cell in pair for r in cell.runs]
    needs = next((r.needs for r in runs if r.needs), ())
    return {"any": [*range(len(runs[0].success))], **kinds_of(needs)}


def _table(
    pairs: Mapping[str, Pair], parts: Mapping[str, Sequence[int]], differ: Gains, settings: str
) -> Table:
    text_of, count = starred(differ)
    rows = tuple(
        (name, *(cell.text for cell in (mine.base, mine)),
         best.method, best.text, *(text_of(part, name) for part in parts))
        for name, (mine, best) in pairs.items()
    )  # fmt: skip
    focus, first = style().focus, next(iter(pairs.values()))[0]
    text = (
        f"{focus} by {settings}, and its difference to the best of the others there, paired by "
        "task: on all tasks (any), and on those that need so many capabilities by the suite's own "
        f"word. 95 % intervals over tasks and seeds; a star: p below 0.05, Holm-corrected over all "
        f"{count} differences. {head(first.runs, PAGE)}"
    )
    columns = (f"{part} ({len(where)} tasks)" for part, where in parts.items())
    header = (settings, style().control, focus, "best of the others", "its success", *columns)
    return Table("against", text, header, rows)


def _draw(pairs: Mapping[str, Pair], differ: Gains, settings: str, path: Path) -> list[Path]:
    """A panel a number of capabilities, a row a cell."""
    names = [*pairs][::-1]
    look = style().looks([style().focus])[style().focus]
    size = (1.9 * len(differ) + 2.2, 0.3 * len(names) + 1.2)
    figure, (row,) = figures.panels(1, len(differ), size, sharey=True, sharex=True)
    for axes, (part, by_name) in zip(row, differ.items(), strict=True):
        axes.axvline(0, color=style().methods[style().control].colour, linewidth=0.8, zorder=0.8)
        for place, name in enumerate(names):
            figures.lying(axes, look, place, by_name[name].interval)
        axes.set_title(f"capabilities needed: {part}")
        axes.set_xlabel("difference in success")
    row[0].set_yticks(range(len(names)), [figures.plain(name) for name in names])
    row[0].set_ylim(-0.6, len(names) - 0.4)
    first = next(iter(pairs.values()))[0]
    caption = (
        f"{look.label} less the best of the other methods in each row, paired by task; rows by "
        f"{settings}; panels by how many capabilities a task needs. {readable(first.runs)}; "
        f"{figures.INTERVALS}."
    )
    return figures.finish(figure, f"{look.label} against the best of the others", caption, path)


if __name__ == "__main__":
    script(make, __doc__, "--setting", needed=True)
