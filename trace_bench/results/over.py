"""Success over the values of one setting, or over the number of training tasks: tables, figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trace_bench.core.errors import UserError, unknown
from trace_bench.results import drawing
from trace_bench.results.captions import describe, readable
from trace_bench.results.compare import Cell, base_of, cells, check_same_settings
from trace_bench.results.groups import groups_of
from trace_bench.results.places import Found
from trace_bench.results.plots import apart
from trace_bench.results.records import Record, flat_settings, training_tasks
from trace_bench.results.style import style
from trace_bench.results.table import Table, estimate

Values = Mapping[float, Sequence[Record]]
"""Runs by their value of the setting, in rising order."""


class Over:
    """Runs along the axis `setting`. Those with a number there are the points; of the others those
    of the same budgets stand as levels. `along`: settings that vary with the first, such as two
    error rates that are set together. Raises UserError for runs that cannot stand in one table."""

    def __init__(self, found: Found, setting: str, along: Sequence[str] = ()) -> None:
        self.setting, self.skipped = setting, found.skipped
        free = (setting, *along)
        _check_known(found.records, free)
        where = {r.fingerprint: _number(flat_settings(r).get(setting)) for r in found.records}
        budgets = {r.budget for r in found.records if where[r.fingerprint] is not None}
        records = [r for r in found.records if r.budget in budgets]
        values = sorted({v for v in where.values() if v is not None})
        if len(values) < 2:
            raise UserError(
                f"--setting {setting}: these runs have {values or 'no number'} there; needed: runs "
                "with at least two values of it. Name more runs, or another setting."
            )
        if rest := len(found.records) - len(records):
            print(f"left out: {rest} runs of other budgets", file=sys.stderr)
        group, *others = groups_of(records, free)
        if others:
            check_same_settings(records, free)
        for text in group.left_out:
            print(f"left out: {text}", file=sys.stderr)
        self.records, self.remarks = group.records, group.remarks
        self.values: Values = {
            v: [r for r in self.records if where[r.fingerprint] == v] for v in values
        }
        self.flat = [r for r in self.records if where[r.fingerprint] is None]

    @property
    def about(self) -> str:
        return " ".join((describe(self.records, self.skipped), *self.remarks))

    def table(
        self, name: str, text: str, note: Callable[[Cell, float], str] = lambda *_: ""
    ) -> Table:
        """One row a method and budget, one column a value. `note`: words behind the number of a
        cell at a value."""
        found = {value: cells(some) for value, some in self.values.items()}
        flat = cells(self.flat)
        rows = []
        for key in cells(self.records):
            row = [_cell(c, key) + (note(c[key], v) if key in c else "") for v, c in found.items()]
            row += [_cell(flat, key)] if flat else []
            rows.append((key[0], f"{key[1]}", *row))
        header = ("method", "budget", *(f"{v:g}" for v in found), *(["not set"] if flat else []))
        return Table(name, f"{text} {self.about}", header, tuple(rows))

    def draw(self, title: str, label: str, path: Path) -> list[Path]:
        """A line for each method and budget; a band for each run without the setting, and for the
        base agent."""
        figure, ((axes,),) = drawing.panels(1, 1, (5.4, 4.0))
        found = {value: cells(some) for value, some in self.values.items()}
        flat, control = cells(self.flat), style().control
        lines = [key for key in cells(self.records) if any(key in c for c in found.values())]
        looks = style().looks([control, *(m for m, _ in (*flat, *lines))])
        one = next(iter(cells(self.records).values()))
        drawing.level(axes, looks[control], base_of(one).interval())
        for order, key in enumerate(k for k in flat if k[0] != control):
            drawing.level(axes, looks[key[0]], flat[key].interval(), order + 1)
        for key in lines:
            points = [(v, c[key].interval()) for v, c in found.items() if key in c]
            drawing.line(axes, looks[key[0]], points)
        drawing.bounds(axes, self.records[0].floors)
        (drawing.doubling if min(found) > 0 else drawing.evenly)(axes, list(found), label)
        axes.set_ylabel(drawing.SUCCESS)
        drawing.beside(axes)
        caption = f"{readable(self.records)}; {drawing.INTERVALS}."
        return drawing.finish(figure, title, caption, path)


def _cell(found: Mapping[tuple[str, int], Cell], key: tuple[str, int]) -> str:
    return estimate(found[key].interval()) if key in found else "not run"


def _check_known(records: Sequence[Record], settings: Sequence[str]) -> None:
    known = {key for record in records for key in flat_settings(record)}
    for setting in settings:
        if setting not in known:
            raise unknown("setting", setting, sorted(known), "--setting")


def _number(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


# -- over the number of training tasks ------------------------------------------------------------


def training_tasks_table(records: Sequence[Record], level: Sequence[Record], caption: str) -> Table:
    """Success by number of training tasks and budget, one row a method and number; below them the
    `level` methods, which do not look at the training tasks."""
    budgets = sorted({r.budget for r in records})
    parts: list[tuple[str, Sequence[Record]]] = [
        (f"{size}", [r for r in records if training_tasks(r) == size])
        for size in sorted({training_tasks(r) for r in records})
    ]
    rows = []
    for name, some in [*parts, ("any", level)]:
        found = cells(some)
        for method in dict.fromkeys(m for m, _ in found):
            row = [name, method]
            row += [_cell(found, (method, b)) for b in budgets]
            rows.append(tuple(row))
    text = (
        "Success by number of training tasks and rollout budget, with 95 % intervals over tasks "
        f"and seeds. {caption}"
    )
    if level:
        text += " The methods at `any` do not look at the training tasks"
        text += f" ({len({r.seed for r in level})} seeds)."
    return Table("training_tasks", text, ("tasks", "method", *map(str, budgets)), tuple(rows))


def training_tasks_figure(
    records: Sequence[Record], flat: Sequence[Record], about: str, path: Path
) -> list[Path]:
    """One panel a budget: success over the number of training tasks, a line a method; `flat` are
    runs of methods that do not look at the training tasks: a band."""
    budgets = sorted({r.budget for r in records})
    size = (max(2.3 * len(budgets) + 1.2, 6.6), 3.6)
    figure, (row,) = drawing.panels(1, len(budgets), size, sharey=True)
    sizes = sorted({training_tasks(r) for r in records})
    levels = cells(flat)
    looks = style().looks([*(r.label for r in records), *(m for m, _ in levels)])
    for n, (axes, budget) in enumerate(zip(row, budgets, strict=True)):
        for order, method in enumerate(dict.fromkeys(m for m, b in levels if b == budget)):
            drawing.level(axes, looks[method], levels[method, budget].interval(), order)
        methods = sorted({r.label for r in records}, key=style().place)
        for order, method in enumerate(methods):
            own = [r for r in records if r.label == method and r.budget == budget]
            by = {n: [r for r in own if training_tasks(r) == n] for n in sizes}
            shift = apart(order, len(methods))
            found = [(n, cell) for n, r in by.items() for cell in cells(r).values()]
            drawing.line(axes, looks[method], [(n * shift, c.interval()) for n, c in found])
        drawing.bounds(axes, records[0].floors, named=n == 0)
        drawing.doubling(axes, sizes, "training tasks")
        axes.set_title(f"{budget:,} rollouts")
    row[0].set_ylabel(drawing.SUCCESS)
    drawing.beside(row[-1])
    title = "Success by number of training tasks and rollout budget"
    caption = f"{about}; {drawing.INTERVALS}."
    if flat:
        caption += (
            f" Bands: methods that see no training task, {len({r.seed for r in flat})} seeds."
        )
    return drawing.finish(figure, title, caption, path)
