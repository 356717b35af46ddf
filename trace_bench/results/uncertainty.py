"""How uncertain a mean over tasks and seeds is, and what difference a design can show.

Tasks and seeds are both samples, so both add variance. With five seeds a bootstrap that resamples
them is too narrow (its variance is short by a factor of 4/5, and it has no tails of a t
distribution); here each variance gets the t quantile of its own degrees of freedom. How often such
intervals hold: `python tests/bench/intervals.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trace_bench.results.records import Record, own_settings
from trace_bench.results.statistics import mean

LEVEL, POWER = 0.05, 0.8
ASSUMED_FLIPS = 0.2
"""The assumption `flips`, where nothing was repeated: two runs of one method disagree on this share
of the tasks. In results/records it is 0.02 to 0.25 for the methods that train."""


@dataclass(frozen=True)
class Uncertainty:
    """Variances of an estimate that come from the tasks and from the seeds, each with the degrees
    of freedom with which it was measured."""

    tasks: float
    task_freedom: float
    seeds: float = 0.0
    seed_freedom: float = math.inf

    def width(self, share: float) -> float:
        """How far the estimate lies above its mean with this probability: sqrt(t1^2 tasks + t2^2
        seeds). Holds exactly where one of the two is 0 and a little more often between (W. G.
        Cochran, Biometrics 20, 1964, for the sum of two variances). inf where nothing is known."""
        parts = ((self.tasks, self.task_freedom), (self.seeds, self.seed_freedom))
        return math.sqrt(sum(v * _t(share, df) ** 2 for v, df in parts if v))

    def detectable(self, comparisons: int = 1) -> float:
        """The smallest true difference that is found with a power of 80 % at a two-sided level of
        5 %, when `comparisons` are made."""
        return self.width(1 - LEVEL / (2 * max(1, comparisons))) + self.width(POWER)


def uncertainty(per_task: Sequence[float], *agents: Sequence[float]) -> Uncertainty:
    """Of a mean over tasks. `per_task`: its value on each task, mean over seeds (a difference, for
    two agents); `agents`: the means of each agent's seeds. One seed gives no variance of seeds:
    then the estimate is about this seed only. The variances overlap in the noise of single
    episodes, which counts in both and widens the interval a little."""
    n = len(per_task)
    tasks = float(np.var(per_task, ddof=1)) / n if n > 1 else math.inf
    parts = [(float(np.var(m, ddof=1)) / len(m), len(m) - 1) for m in agents if len(m) > 1]
    seeds = sum(v for v, _ in parts)
    if not seeds:
        return Uncertainty(tasks, n - 1)
    # Welch's degrees of freedom for the sum over the agents (B. L. Welch, Biometrika 34, 1947).
    freedom = seeds**2 / sum(v**2 / df for v, df in parts)
    return Uncertainty(tasks, n - 1, seeds, freedom)


def _t(share: float, freedom: float) -> float:
    from scipy.special import ndtri, stdtrit

    if freedom <= 0:
        return math.inf
    return float(ndtri(share) if math.isinf(freedom) else stdtrit(freedom, share))


# -- what a design can show ------------------------------------------------------------------------


@dataclass(frozen=True)
class Repeats:
    """How repeats of one thing differ: `flips`, the probability that two episodes of a task from
    two repeats disagree; `deviation`, that of the seeds' means beyond it, with its degrees of
    freedom; `source`, where both come from."""

    flips: float
    source: str
    deviation: float = 0.0
    freedom: float = math.inf


ASSUMED = Repeats(ASSUMED_FLIPS, "the assumption `flips`, as nothing was repeated")


def smallest(tasks: int, seeds: int, trials: int, repeats: Repeats) -> float:
    """The smallest difference of two methods that so many tasks, seeds and trials can show if they
    differ alike on all tasks."""
    noise = repeats.flips / (tasks * seeds * trials)
    between = 2 * repeats.deviation**2 / seeds
    return Uncertainty(noise, math.inf, between, repeats.freedom).detectable()


def can_show(tasks: int, seeds: int, trials: int, repeats: Repeats = ASSUMED) -> str:
    """`smallest` as a sentence, with what it follows from. Above 1, the largest difference that two
    success rates can have, there is none."""
    counts = f"{many(tasks, 'task')}, {many(seeds, 'seed')} and {many(trials, 'trial')}"
    least = smallest(tasks, seeds, trials, repeats)
    shown = f"{least:.3f}" if least <= 1 else "none (not even a difference of 1)"
    text = (
        f"The smallest difference that {counts} can show (power 80 %, two-sided 5 %, paired by "
        f"task): {shown}, if repeats disagree on {100 * repeats.flips:.1f} % of the tasks"
    )
    if repeats.deviation:
        text += f" and seeds deviate by {repeats.deviation:.3f} beyond that"
    return f"{text} ({repeats.source})." + ("" if seeds > 1 else " Other seeds may differ more.")


def repeats_of(records: Sequence[Record]) -> Repeats:
    """From runs that differ in the seed only, else from the trials of each run, else assumed. Runs
    that never disagree, such as those of an agent without training, say nothing and are left
    out."""
    groups: dict[str, list[Record]] = {}
    for r in records:
        apart = [sorted(s.items(), key=str) for s in (r.settings, r.source)]
        key = str((r.label, r.budget, apart, own_settings(r)))
        groups.setdefault(key, []).append(r)
    found = [_between_seeds(some) for some in groups.values() if len(some) > 1]
    found = [each for each in found if each[0]]
    if found:
        flips, excess, freedom = (mean([each[i] for each in found]) for i in range(3))
        source = f"between the seeds of these runs, mean over {many(len(found), 'setting')}"
        return Repeats(flips, source, math.sqrt(excess), 2 * freedom)
    tried = [2 * c * (n - c) / (n * (n - 1)) for r in records for c, n in r.passes if n > 1]
    if any(tried):
        return Repeats(mean(tried), "between the trials of these runs")
    return ASSUMED


def _between_seeds(records: Sequence[Record]) -> tuple[float, float, float]:
    """(flips, variance of the seeds' means beyond them, its degrees of freedom)."""
    trials = int(records[0].settings.get("evaluation.trials", 1))
    values = np.array([[np.nan if s is None else s for s in r.success] for r in records], float)
    flips = _disagreement(values)
    means = np.nanmean(values, axis=1)
    excess = float(np.var(means, ddof=1)) - flips / (2 * values.shape[1] * trials)
    return flips, max(0.0, excess), len(records) - 1


def _disagreement(values: np.ndarray) -> float:
    """How often episodes of two rows of [repeats, tasks] differ, a(1-b) + b(1-a): mean over the
    tasks that both have, then over the pairs that have such tasks."""
    known = (~np.isnan(values)).astype(float)
    found = np.nan_to_num(values)
    either = found @ known.T
    both = known @ known.T
    pair = np.tril_indices(len(values), -1)
    some = both[pair] > 0
    differ = (either + either.T - 2 * found @ found.T)[pair]
    return float(np.mean(differ[some] / both[pair][some])) if some.any() else 0.0


def many(count: int, what: str) -> str:
    """The count with the word, in the plural unless it is one."""
    return f"{count} {what}" + ("" if count == 1 else "s")
