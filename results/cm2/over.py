"""Success over the values of one setting: a table and a figure.

    PYTHONPATH=.. python over.py PLACE|FILTER... --setting SETTING,... --out FOLDER

`--setting`: that of the axis and, after commas, those that vary along with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common import check_keys, script

from trace_bench.core.errors import UserError
from trace_bench.core.summary import Interval
from trace_bench.results import figures
from trace_bench.results.captions import began_alike, by_total, describe, head, readable
from trace_bench.results.cells import cells
from trace_bench.results.groups import check_same_settings, groups_of
from trace_bench.results.places import Selection, say
from trace_bench.results.run import Run
from trace_bench.results.table import Table, style, write
from trace_bench.results.tables import success


class Over:
    """Runs along the axis `setting`. Those with a number there are the points; others of the same
    budgets stand as levels. `along`: settings that vary with the first. Raises UserError."""

    def __init__(self, selection: Selection, setting: str, along: Sequence[str] = ()) -> None:
        free, every = (setting, *along), selection.runs
        check_keys(every, free, "--setting")
        where = {r.fingerprint: _number(r.flat.get(setting)) for r in every}
        budgets = {r.budget for r in every if where[r.fingerprint] is not None}
        runs = [r for r in every if r.budget in budgets]
        values = sorted({v for v in where.values() if v is not None})
        if len(values) < 2:
            raise UserError(
                f"--setting {setting}: these runs have {values or 'no number'} there; needed: runs "
                "with at least two values of it. Name more runs, or another setting."
            )
        if rest := len(every) - len(runs):
            say("left out", [f"{rest} runs of other budgets"])
        group, *others = groups_of(runs, free)
        if others:
            check_same_settings(runs, free)
        say("left out", group.left_out)
        self.runs = group.runs
        self.about = " ".join((describe(self.runs, selection.skipped), *group.remarks))
        self.cells = {v: cells([r for r in self.runs if where[r.fingerprint] == v]) for v in values}
        self.flat = cells([r for r in self.runs if where[r.fingerprint] is None])

    def table(self, name: str, text: str) -> Table:
        """A row a method and budget, a column a value."""
        rows = []
        for key in cells(self.runs):
            row = [success(of_value, key) for of_value in self.cells.values()]
            row += [success(self.flat, key)] if self.flat else []
            rows.append((key[0], f"{key[1]}", *row))
        columns = [*(f"{v:g}" for v in self.cells), *(["not set"] if self.flat else [])]
        caption = f"{text} {head(self.runs, f'about_{name}')}"
        return Table(name, caption, ("method", "budget", *columns), tuple(rows))

    def levels(self) -> list[tuple[str, Interval]]:
        """Runs without the setting, and the base agent where all began with the same one."""
        control, every = style().control, cells(self.runs)
        models = {str(_model(run)) for run in self.runs}
        alike = began_alike(self.runs) and len(models) == 1
        base = [(control, next(iter(every.values())).base.interval())] if alike else []
        return base + [(k[0], c.interval()) for k, c in self.flat.items() if k[0] != control]

    def draw(self, title: str, label: str, path: Path) -> list[Path]:
        """A line a method and budget; a band for each of the levels."""
        figure, ((axes,),) = figures.panels(1, 1, (5.4, 4.0))
        control, every = style().control, cells(self.runs)
        keys = [key for key in every if any(key in c for c in self.cells.values())]
        lines = [
            (key[0], [(v, c[key].interval()) for v, c in self.cells.items() if key in c])
            for key in keys
        ]
        looks = style().looks([control, *(m for m, _ in (*self.flat, *keys))])
        figures.chart(axes, looks, self.levels(), lines, shifted=False)
        figures.bounds(axes, self.runs[0].floors)
        scale = figures.doubling if min(self.cells) > 0 else figures.evenly
        scale(axes, list(self.cells), label)
        axes.set_ylabel(figures.SUCCESS)
        axes.legend(**figures.BESIDE)
        caption = f"{readable(self.runs)}; {figures.INTERVALS}."
        return figures.finish(figure, title, caption, path)


def _model(run: Run) -> list[tuple[str, object]]:
    return sorted((k, v) for k, v in run.settings.items() if k.startswith("model."))


def _number(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def make(selection: Selection, out: Path, keys: Sequence[str]) -> list[Path]:
    axis, *along = keys
    across = Over(replace(selection, runs=by_total(selection.runs)), axis, along)
    name = f"over_{axis.rpartition('.')[2]}"
    named = " and ".join((axis, *along))
    text = f"Success by {named} (columns), with 95 % intervals over tasks and seeds."
    written = write([across.table(name, text)], out, f"about_{name}", [across.about])
    return written + across.draw(f"Success by {axis}", axis, out / name)


if __name__ == "__main__":
    script(make, __doc__, "--setting", needed=True)
