"""The runs of one method at one budget and their statistics: means over seeds and tasks, intervals,
differences to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.summary import Interval
from trace_bench.core.types import grouped
from trace_bench.results import statistics
from trace_bench.results.run import Run
from trace_bench.results.table import Table, estimate, gap, style


@dataclass(frozen=True)
class Cell:
    """All seeds of one method at one budget: success per seed and task, NaN for a lost one."""

    method: str
    budget: int
    runs: tuple[Run, ...]

    @cached_property
    def matrix(self) -> np.ndarray:
        return np.array([r.success for r in self.runs], dtype=float)  # None becomes NaN

    @property
    def value(self) -> float:
        """The mean over tasks of their means over seeds, as in `difference`."""
        return float(np.nanmean(self.per_task))

    @cached_property
    def per_task(self) -> np.ndarray:
        """Mean over seeds [tasks]; NaN where every seed was lost."""
        matrix = self.matrix
        scored = (~np.isnan(matrix)).sum(0)
        return np.where(scored > 0, np.nansum(matrix, 0) / np.maximum(scored, 1), np.nan)

    @cached_property
    def seed_means(self) -> list[float]:
        """Success of each seed; on tasks that a seed lost it counts as the mean over the seeds."""
        gaps = self.matrix - self.per_task
        scored = (~np.isnan(gaps)).sum(1)
        return [*map(float, self.value + np.nansum(gaps, 1) / np.maximum(scored, 1))]

    @cached_property
    def base(self) -> Cell:
        """The base agents that its runs evaluated."""
        name = style().control
        agents = (replace(r.named(name), success=r.base) for r in self.runs)
        return Cell(name, self.budget, tuple(agents))

    def on(self, places: Sequence[int]) -> Cell:
        """The cell on the tasks at these places alone, its base agents too."""

        def some(values: Sequence[float | None]) -> tuple[float | None, ...]:
            return tuple(values[i] for i in places)

        runs = (replace(r, success=some(r.success), base=some(r.base)) for r in self.runs)
        return replace(self, runs=tuple(runs))

    def mean(self, figure: Callable[[Run], float]) -> float:
        """Of a figure, over the seeds."""
        return statistics.mean([figure(r) for r in self.runs])

    def interval(self) -> Interval:
        """95 % over tasks and seeds (`uncertainty`); Wilson's over tasks where nothing varied."""
        scores = self.per_task[~np.isnan(self.per_task)].tolist()
        if self.value in (0.0, 1.0):
            return statistics.wilson_interval(sum(scores), len(scores))
        return statistics.uncertainty(scores, self.seed_means).around(self.value, 0.0)

    @property
    def text(self) -> str:
        """What a table shows of it; "" where no task has a score."""
        return estimate(self.interval()) if self.shares(self) else ""

    def shares(self, other: Cell) -> bool:
        """Whether there is a task with a score of both."""
        return not np.isnan(self.per_task - other.per_task).all()


Cells = Mapping[tuple[str, int], Cell]
"""The cells by (method, budget), methods in table order, budgets ascending."""


def cells(runs: Sequence[Run]) -> dict[tuple[str, int], Cell]:
    groups = grouped(runs, lambda r: (r.label, r.budget))
    keys = sorted(groups, key=lambda k: (style().place(k[0]), k[1]))
    return {key: Cell(*key, tuple(sorted(groups[key], key=lambda r: r.seed))) for key in keys}


def by_cell(
    name: str,
    caption: str,
    header: Sequence[str],
    grid: Cells,
    rows: Callable[[Cell], Iterable[Sequence[str]]],
) -> Table:
    """A table with the rows of each cell behind its method and budget."""
    body = [(m, f"{budget}", *row) for (m, budget), cell in grid.items() for row in rows(cell)]
    return Table(name, caption, ("method", "budget", *header), tuple(body))


@dataclass(frozen=True)
class Difference:
    """Treated less control on the same tasks, means over seeds (`uncertainty`)."""

    interval: Interval
    p: float
    uncertainty: statistics.Uncertainty

    def columns(self, p: float) -> tuple[str, str]:
        """What two columns of a table show of it. `p`: corrected, or its own."""
        return gap(self.interval), statistics.p_value(p)


def difference(treated: Cell, control: Cell) -> Difference:
    """The difference, paired by task. Raises UserError where no task has a score of both."""
    per_task = treated.per_task - control.per_task
    gaps = per_task[~np.isnan(per_task)].tolist()
    if not gaps:
        raise UserError(
            f"{treated.method} and {control.method} have no held-out task of which both have a "
            "score; nothing can be compared. Evaluate them on the same tasks."
        )
    spread = statistics.uncertainty(gaps, treated.seed_means, control.seed_means)
    value = sum(gaps) / len(gaps)
    return Difference(spread.around(value, -1.0), spread.p(value), spread)


def starred(
    columns: Mapping[str, Mapping[str, Difference]],
) -> tuple[Callable[[str, str], str], int]:
    """What a table shows of each difference, by column and row, with a star where p is below 0.05
    by Holm's correction over all of them; and how many they are."""
    corrected = statistics.holm(
        {f"{a}/{b}": d.p for a, some in columns.items() for b, d in some.items()}
    )

    def text(column: str, row: str) -> str:
        if row not in columns[column]:
            return "not run"
        star = "*" if corrected[f"{column}/{row}"] < 0.05 else ""
        return f"{gap(columns[column][row].interval)}{star}"

    return text, len(corrected)
