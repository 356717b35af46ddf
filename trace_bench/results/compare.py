"""Groups of comparable runs and their statistics: means over seeds and tasks, intervals, tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.summary import Interval
from trace_bench.core.types import grouped
from trace_bench.results.records import TRAINING, Record, flat_settings
from trace_bench.results.statistics import Uncertainty, mean, uncertainty, wilson_interval
from trace_bench.results.table import Table, style

DEFAULTS = {
    "accounting": "strict",
    "evaluation.retries": 1,
    "policy.thinking": None,
    "policy.max_seconds": None,
    "policy.thoughts": "own",
    "policy.parse": "server",
    "trainer.algorithm.name": "grpo",
    "trainer.algorithm.kl": 0.0,
    "trainer.algorithm.truncate": None,
}
"""The values of these settings in runs that do not name them: from before they existed, or with
their defaults (`core.checked.LATER`)."""
_LONGEST = 60  # characters of a value that a message shows


def check_comparable(records: Sequence[Record], free: Sequence[str] = ()) -> None:
    """Raises UserError as `check_same_settings` does, and for two runs of one method, budget and
    seed with other settings of the method."""
    check_same_settings(records, free)
    seen: dict[tuple[object, ...], str] = {}
    for record in records:
        where = tuple(str(flat_settings(record).get(name)) for name in free)
        own = (record.label, record.budget, record.seed, *where)
        if seen.setdefault(own, record.fingerprint) != record.fingerprint:
            raise UserError(
                f"runs {seen[own]} and {record.fingerprint} are both method={record.label} "
                f"budget={record.budget} seed={record.seed}, with other settings of the method. "
                "Name one of them, or compare the two: `python -m trace_bench.results compare RUN "
                "RUN`."
            )


def check_same_settings(records: Sequence[Record], free: Sequence[str] = ()) -> None:
    """Raises UserError with the keys in which the runs differ, apart from method, budget, seed and
    the settings named in `free`: such runs do not allow a comparison of methods."""
    values: dict[str, dict[str, str]] = {}
    facts = {name for record in records for name in record.about}
    for record in records:
        found = shared(record, facts) | record.trained_on
        for key in found.keys() - set(free) - {f"training.{name}" for name in free}:
            values.setdefault(key, {})[str(found[key])] = record.fingerprint
    differ = {key: found for key, found in values.items() if len(found) > 1}
    if differ:
        shown = "; ".join(
            f"{key} is {' or '.join(f'{v} (run {run})' for v, run in sorted(found.items()))}"
            for key, found in sorted(differ.items())
        )
        raise UserError(
            f"these runs cannot stand in one table, since they differ in more than method, budget "
            f"and seed: {shown}. Name runs that agree."
        )


def shared(record: Record, facts: Iterable[str]) -> dict[str, Any]:
    """What all runs of a table must agree in, wherever their training tasks came from: settings,
    held-out tasks, reporting rule, and the suite's own `facts`."""
    apart = (*TRAINING, "env.eval_split")  # the split that was reported is evaluation.split
    own = {key: value for key, value in record.settings.items() if key not in apart}
    found = {**DEFAULTS, **own, "held-out tasks": record.tasks, "rule": record.rule}
    return found | {f"the suite's {n}": record.about.get(n, "not recorded") for n in facts}


def environment_code(record: Record) -> dict[str, str]:
    """What is recorded of the code of a run's environment, by setting; {} for the package's own."""
    own = ("env.factory", "env.origin.")
    return {k: str(v) for k, v in record.settings.items() if k.startswith(own)}


def other_environment(one: Record, other: Record) -> str:
    """In what the code of the two runs' environments, and so the tasks of an id, differ."""
    a, b = environment_code(one), environment_code(other)
    differ = [k for k in {**a, **b} if a.get(k) != b.get(k)]
    return "; ".join(
        f"{k} is {a.get(k, 'none')[:_LONGEST]} and {b.get(k, 'none')[:_LONGEST]}" for k in differ
    )


def other_data(one: Record, other: Record) -> list[tuple[str, Any, Any]]:
    """[(fact, value, other value)] of the facts in which the runs' suites differ."""
    names = [n for n in one.about if n in other.about and one.about[n] != other.about[n]]
    return [(f"the suite's {n}", one.about[n], other.about[n]) for n in names]


@dataclass(frozen=True)
class Cell:
    """All seeds of one method at one budget: success per seed and task, NaN for a lost one."""

    method: str
    budget: int
    records: tuple[Record, ...]

    @cached_property
    def matrix(self) -> np.ndarray:
        return np.array([r.success for r in self.records], dtype=float)  # None becomes NaN

    @property
    def value(self) -> float:
        """The mean over tasks of their means over seeds, as in `difference`."""
        return float(np.nanmean(self.per_task))

    @cached_property
    def per_task(self) -> np.ndarray:
        """Mean over seeds [tasks]; NaN where every seed was lost."""
        matrix = self.matrix
        known = (~np.isnan(matrix)).sum(0)
        return np.where(known > 0, np.nansum(matrix, 0) / np.maximum(known, 1), np.nan)

    @cached_property
    def seed_means(self) -> list[float]:
        """Success of each seed; on tasks that a seed lost it counts as the mean over the seeds."""
        gaps = self.matrix - self.per_task
        known = (~np.isnan(gaps)).sum(1)
        return [*map(float, self.value + np.nansum(gaps, 1) / np.maximum(known, 1))]

    @cached_property
    def base(self) -> Cell:
        """The base agents that its runs evaluated."""
        name = style().control
        own = (replace(r.named(name), success=r.base, passes=()) for r in self.records)
        return Cell(name, self.budget, tuple(own))

    def on(self, places: Sequence[int]) -> Cell:
        """The cell on the tasks at these places alone, its base agents too."""
        fields = ("success", "base", "passes", "needs")
        records = []
        for r in self.records:
            known = {name: values for name in fields if (values := getattr(r, name))}
            some: dict[str, Any] = {n: tuple(v[i] for i in places) for n, v in known.items()}
            records.append(replace(r, **some))
        return replace(self, records=tuple(records))

    def mean(self, figure: Callable[[Record], float]) -> float:
        """Of a figure, over the seeds."""
        return mean([figure(r) for r in self.records])

    def interval(self) -> Interval:
        """95 % over tasks and seeds (`uncertainty`); Wilson's over tasks where nothing varied."""
        known = self.per_task[~np.isnan(self.per_task)].tolist()
        if self.value in (0.0, 1.0):
            return wilson_interval(sum(known), len(known))
        return uncertainty(known, self.seed_means).around(self.value, 0.0)


Cells = Mapping[tuple[str, int], Cell]
"""The cells by (method, budget), methods in table order, budgets ascending."""


def cells(records: Sequence[Record]) -> dict[tuple[str, int], Cell]:
    groups = grouped(records, lambda r: (r.label, r.budget))
    keys = sorted(groups, key=lambda k: (style().place(k[0]), k[1]))
    return {key: Cell(*key, tuple(sorted(groups[key], key=lambda r: r.seed))) for key in keys}


def by_cell(
    name: str,
    caption: str,
    header: Sequence[str],
    found: Cells,
    rows: Callable[[Cell], Iterable[Sequence[str]]],
) -> Table:
    """A table with the rows of each cell behind its method and budget."""
    made = [(m, f"{budget}", *row) for (m, budget), cell in found.items() for row in rows(cell)]
    return Table(name, caption, ("method", "budget", *header), tuple(made))


@dataclass(frozen=True)
class Difference:
    """Treated less control on the same tasks, means over seeds (`uncertainty`)."""

    interval: Interval
    p: float
    uncertainty: Uncertainty


def difference(treated: Cell, control: Cell) -> Difference:
    """The difference, paired by task. Raises UserError where no task has a score of both."""
    per_task = treated.per_task - control.per_task
    known = per_task[~np.isnan(per_task)].tolist()
    if not known:
        raise UserError(
            f"{treated.method} and {control.method} have no held-out task of which both have a "
            "score; nothing can be compared. Evaluate them on the same tasks."
        )
    found = uncertainty(known, treated.seed_means, control.seed_means)
    value = sum(known) / len(known)
    return Difference(found.around(value, -1.0), found.p(value), found)


def scored(one: Cell, other: Cell) -> bool:
    """Whether there is a task with a score of both."""
    return not np.isnan(one.per_task - other.per_task).all()
