"""Groups of comparable runs and their statistics: means over seeds and tasks, intervals, tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.results.records import Record
from trace_bench.results.statistics import Interval, permutation_p
from trace_bench.results.style import style

RESAMPLES = 4000
# The values of these settings in runs from before they existed.
DEFAULTS = {"accounting": "strict", "evaluation.retries": 1}


def check_comparable(records: Sequence[Record], free: Sequence[str] = ()) -> None:
    """Raises UserError for runs that cannot stand in one table: those that differ in more than
    method, budget, seed and the settings named in `free`, and two of one method, budget and seed
    with other settings of the method."""
    check_same_settings(records, free)
    seen: dict[tuple[object, ...], str] = {}
    for record in records:
        where = tuple(_setting(record, name) for name in free)
        own = (record.method, record.budget, record.seed, *where)
        if seen.setdefault(own, record.fingerprint) != record.fingerprint:
            raise UserError(
                f"runs {seen[own]} and {record.fingerprint} are both method={record.method} "
                f"budget={record.budget} seed={record.seed}, with other settings of the method. "
                "Name one of them."
            )


def check_same_settings(records: Sequence[Record], free: Sequence[str] = ()) -> None:
    """Raises UserError with the keys in which the runs differ, apart from method, budget, seed and
    the settings named in `free`: such runs do not allow a comparison of methods."""
    values: dict[str, dict[str, str]] = {}
    facts = {name for record in records for name in record.about}
    for record in records:
        shared = {**DEFAULTS, **record.settings}
        shared |= {"held-out tasks": record.tasks, "rule": record.rule}
        shared |= {f"the suite's {n}": record.about.get(n, "not recorded") for n in facts}
        for key in shared.keys() - set(free):
            value = shared[key]
            values.setdefault(key, {})[str(value)] = record.fingerprint
    differ = {key: found for key, found in values.items() if len(found) > 1}
    if differ:
        shown = "; ".join(
            f"{key} is {' or '.join(f'{v} (run {mark})' for v, mark in sorted(found.items()))}"
            for key, found in sorted(differ.items())
        )
        raise UserError(
            f"these runs cannot stand in one table, since they differ in more than method, budget "
            f"and seed: {shown}. Name runs that agree."
        )


def _setting(record: Record, name: str) -> object:
    own = name.removeprefix("method.")
    return record.method_settings.get(own) if own != name else record.settings.get(name)


@dataclass(frozen=True)
class Cell:
    """All seeds of one method at one budget: success per seed and task, NaN for a lost one."""

    method: str
    budget: int
    records: tuple[Record, ...]

    @cached_property
    def matrix(self) -> np.ndarray:
        """[seeds, tasks]"""
        return np.array(
            [[np.nan if s is None else s for s in r.success] for r in self.records], dtype=float
        )

    @property
    def value(self) -> float:
        return float(np.nanmean(self.matrix))

    @cached_property
    def per_task(self) -> np.ndarray:
        """Mean over seeds [tasks]; NaN where every seed was lost."""
        matrix = self.matrix
        known = (~np.isnan(matrix)).sum(0)
        return np.where(known > 0, np.nansum(matrix, 0) / np.maximum(known, 1), np.nan)

    def draws(self, seed: int, what: str) -> np.ndarray:
        """Means over resampled tasks and seeds (see `_means`); cached for all comparisons."""
        known: dict[tuple[int, str], np.ndarray] = self.__dict__.setdefault("_draws", {})
        if (seed, what) not in known:
            known[seed, what] = _means(self.matrix, seed, what)
        return known[seed, what]

    def similarity(self) -> Interval:
        """Mean over seeds of the mean similarity, with its range over seeds."""
        values = [r.similarity for r in self.records]
        return Interval(sum(values) / len(values), min(values), max(values))

    def interval(self, level: float = 0.95, seed: int = 0) -> Interval:
        """Percentile bootstrap over tasks and seeds together: both are resampled."""
        draws = self.draws(seed, "seeds")
        low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2])
        return Interval(float(np.nanmean(self.matrix)), float(low), float(high))


def cells(records: Sequence[Record]) -> dict[tuple[str, int], Cell]:
    """The cells by (method, budget), methods in table order, budgets ascending."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.method, record.budget), []).append(record)
    keys = sorted(groups, key=lambda k: (style().place(k[0]), k[1]))
    return {key: Cell(*key, tuple(sorted(groups[key], key=lambda r: r.seed))) for key in keys}


@dataclass(frozen=True)
class Difference:
    """`value` = treated - control on the same tasks, means over seeds; `interval` by bootstrap over
    tasks and seeds, `p` by sign flips over tasks."""

    interval: Interval
    p: float


@lru_cache(maxsize=64)
def _weights(count: int, seed: int, what: str) -> np.ndarray:
    """How often each of `count` things is drawn in each resample [RESAMPLES, count]. `what` keeps
    the draws of tasks and of two agents' seeds apart."""
    rng = np.random.default_rng([seed, *what.encode()])
    return rng.multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(float)


def difference(treated: Cell, control: Cell, seed: int = 0) -> Difference:
    """The difference, paired by task. The p-value treats the seeds as fixed and tests over tasks;
    the interval also resamples seeds, so it covers more uncertainty."""
    per_task = treated.per_task - control.per_task
    known = per_task[~np.isnan(per_task)]
    draws = treated.draws(seed, "treated") - control.draws(seed, "control")
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Difference(
        Interval(float(known.mean()), float(low), float(high)), permutation_p(known.tolist())
    )


def _means(matrix: np.ndarray, seed: int, what: str) -> np.ndarray:
    """Means [RESAMPLES] of a matrix [seeds, tasks] whose rows and columns are drawn anew; all calls
    with one seed draw the same tasks. NaN where nothing that was drawn has a score."""
    rows, columns = _weights(len(matrix), seed, what), _weights(matrix.shape[1], seed, "tasks")
    known = ~np.isnan(matrix)
    totals = ((rows @ np.where(known, matrix, 0.0)) * columns).sum(1)
    counts = ((rows @ known.astype(float)) * columns).sum(1)
    with np.errstate(invalid="ignore"):
        return np.asarray(totals / counts)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for the number of comparisons (S. Holm, Scand. J. Statist. 6, 1979)."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    out: dict[str, float] = {}
    worst = 0.0
    for rank, name in enumerate(ordered):
        worst = max(worst, min(1.0, (len(ordered) - rank) * p_values[name]))
        out[name] = worst
    return out


def detectable(
    error: float, comparisons: int = 1, *, level: float = 0.05, power: float = 0.8
) -> float:
    """The smallest true difference that would be found with this power when `comparisons` are made:
    (z_{1-level/(2 comparisons)} + z_{power}) error, with `error` the standard error of a measured
    difference."""
    from statistics import NormalDist

    z = NormalDist().inv_cdf
    return float((z(1 - level / (2 * max(1, comparisons))) + z(power)) * error)


def standard_error(found: Difference) -> float:
    """The standard error of a difference, from the width of its 95 % interval."""
    return (found.interval.high - found.interval.low) / (2 * 1.96)
