"""Success over the values of one setting: a table and a figure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trace_bench.core.errors import UserError, unknown
from trace_bench.results import drawing
from trace_bench.results.compare import Cell, base_of, cells, check_same_settings
from trace_bench.results.groups import groups_of
from trace_bench.results.places import Found
from trace_bench.results.records import Record, flat_settings
from trace_bench.results.style import style
from trace_bench.results.table import Table
from trace_bench.results.tables import describe, in_cell, readable

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
            row = [f"{in_cell(c[key])}{note(c[key], v)}" if key in c else "not run"
                   for v, c in found.items()]  # fmt: skip
            row += [in_cell(flat[key]) if key in flat else "not run"] if flat else []
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


def _check_known(records: Sequence[Record], settings: Sequence[str]) -> None:
    known = {key for record in records for key in flat_settings(record)}
    for setting in settings:
        if setting not in known:
            raise unknown("setting", setting, sorted(known), "--setting")


def _number(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
