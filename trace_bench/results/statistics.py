"""Intervals and paired tests over tasks, and what difference a design can show. Pure functions on
numbers; every draw is seeded.

A task is the unit of sampling: trials of one task are averaged first (`task_means`), because two
trials of a task say less about an agent than two tasks do.

Tasks and seeds are both samples, so both add variance. With five seeds a bootstrap that resamples
them is too narrow (its variance is short by a factor of 4/5, and it has no tails of a t
distribution); `Uncertainty` gives each variance the t quantile of its own degrees of freedom, in
intervals and p-values alike. How often they hold, and how many stars a table of
equal methods has: `python tests/bench/intervals.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trace_bench.core.summary import Interval, PairedDifference
from trace_bench.core.types import grouped

LEVEL = 0.95  # of every interval
RESAMPLES = 10_000


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def task_means(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Mean per task over its trials, in order of first appearance."""
    of_task = grouped(pairs, lambda pair: pair[0])
    return {task: mean([float(value) for _, value in own]) for task, own in of_task.items()}


def pass_hat(passes: Iterable[tuple[int, int]], k: int) -> float | None:
    """pass^k: the probability that k trials of a task all succeed, mean over tasks. `passes` holds
    (successes, trials) of each task; those with fewer than k are left out, None without any.
    Unbiased per task: C(successes, k) / C(trials, k). Source: tau-bench (arXiv 2406.12045)."""
    rates = [math.comb(c, k) / math.comb(n, k) for c, n in passes if n >= k]
    return mean(rates) if rates else None


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap interval of the mean, one value per task; ValueError for none."""
    sample = _sample(values)
    rng = np.random.default_rng(0)
    block = max(1, 1_000_000 // sample.size)  # drawn in blocks so that memory stays small
    means = [
        sample[rng.integers(0, sample.size, size=(min(block, RESAMPLES - i), sample.size))].mean(1)
        for i in range(0, RESAMPLES, block)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(sample.mean()), float(low), float(high))


def wilson_interval(successes: float, n: int) -> Interval:
    """Wilson's score interval for a proportion; sound at 0 and n, where a bootstrap has no width
    (E. B. Wilson, Probable inference, the law of succession, ..., JASA 1927)."""
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"successes must lie in 0..n with n > 0, got {successes} of {n}")
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = successes / n
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    # Rounding must not put an end on the wrong side of the share, which lies at one for 0 and n.
    return Interval(share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def share_interval(values: Sequence[float]) -> Interval:
    """95 % interval of a mean of success shares, one per task: Wilson's if none varies."""
    if values and (all(v == 0 for v in values) or all(v == 1 for v in values)):
        return wilson_interval(sum(values), len(values))
    return bootstrap_interval(values)


def permutation_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of the paired sign-flip test of "mean difference is 0". Exact when all
    differences have one size (single-trial success: the sign test, McNemar's exact test) and when
    few differ; otherwise Monte Carlo with the +1 correction, so never 0."""
    sample = _sample(differences)
    changed = sample[sample != 0]
    if changed.size == 0:
        return 1.0
    from scipy.stats import binomtest, permutation_test  # a second to import

    if np.allclose(np.abs(changed), abs(changed[0])):
        return float(binomtest(int((changed > 0).sum()), changed.size).pvalue)
    flips = permutation_test(
        (changed,), np.mean, permutation_type="samples", vectorized=True,
        n_resamples=RESAMPLES, batch=1000, random_state=0,
    )  # fmt: skip
    return float(flips.pvalue)


def paired_difference(
    treated: Mapping[str, float], control: Mapping[str, float]
) -> PairedDifference:
    """Difference of two agents, {task id: value}. ValueError if their tasks differ."""
    if treated.keys() != control.keys():
        odd = sorted(treated.keys() ^ control.keys())
        raise ValueError(f"the agents were measured on different tasks, e.g. {odd[:3]}")
    values = [treated[task] - control[task] for task in control]
    interval, changed = vars(bootstrap_interval(values)), sum(v != 0 for v in values)
    return PairedDifference(
        **interval, p_value=permutation_p(values), n=len(values), discordant=changed
    )


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction for the number of comparisons (S. Holm, Scand. J. Statist. 6, 1979)."""
    out: dict[str, float] = {}
    worst = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p))
        out[name] = worst
    return out


def _sample(values: Sequence[float]) -> np.ndarray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("no values: an interval needs at least one task")
    return sample


# -- how uncertain a mean over tasks and seeds is --------------------------------------------------

ALPHA, POWER = 0.05, 0.8
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

    def around(self, value: float, least: float) -> Interval:
        """The 95 % interval of an estimate, within `least` and 1."""
        half = self.width(1 - ALPHA / 2)
        return Interval(value, max(least, value - half), min(1.0, value + half))

    def p(self, value: float) -> float:
        """The two-sided p-value of "the estimate's mean is 0": the level at which the interval
        around `value` would end at 0, so that p < 0.05 and a 95 % interval without 0 are one
        statement. Not below 2 to the number of tasks less 1, the finest that signs of so many
        tasks could show; also where nothing varied."""
        from scipy.optimize import brentq

        if value == 0 or math.isinf(self.tasks):
            return 1.0
        least = max(1e-12, 2.0**-self.task_freedom)
        if self.width(1 - least / 2) < abs(value):
            return least
        level = brentq(lambda x: self.width(1 - math.exp(x) / 2) - abs(value), math.log(least), 0.0)
        return math.exp(level)

    def detectable(self, level: float = ALPHA) -> float:
        """The smallest true difference found with a power of 80 %."""
        return self.width(1 - level / 2) + self.width(POWER)


def uncertainty(per_task: Sequence[float], *agents: Sequence[float]) -> Uncertainty:
    """Of a mean over tasks. `per_task`: its value on each task, mean over seeds (a difference, for
    two agents); `agents`: the means of each agent's seeds; one seed gives no variance. The
    variances overlap in the noise of single episodes, which widens the interval a little."""
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
    """How repeats of one thing differ: `flips`, the probability that two episodes of a task
    disagree; `deviation`, that of the seeds' means beyond it; `source`, where both come from."""

    flips: float
    source: str
    deviation: float = 0.0
    freedom: float = math.inf


ASSUMED = Repeats(ASSUMED_FLIPS, "the assumption `flips`, as nothing was repeated")


def smallest(tasks: int, seeds: int, trials: int, repeats: Repeats) -> float:
    """The smallest difference that a design shows of methods that differ alike on all tasks."""
    noise = repeats.flips / (tasks * seeds * trials)
    between = 2 * repeats.deviation**2 / seeds
    return Uncertainty(noise, math.inf, between, repeats.freedom).detectable()


def can_show(tasks: int, seeds: int, trials: int, repeats: Repeats = ASSUMED) -> str:
    """`smallest` as a sentence, with what it follows from. Above 1, the largest difference that two
    success rates can have, there is none."""
    counts = f"{many(tasks, 'task')}, {many(seeds, 'seed')} and {many(trials, 'trial')}"
    least = smallest(tasks, seeds, trials, repeats)
    size = f"{least:.3f}" if least <= 1 else "none (not even a difference of 1)"
    text = (
        f"The smallest difference that {counts} can show (power 80 %, two-sided 5 %, paired by "
        f"task): {size}, if repeats disagree on {100 * repeats.flips:.1f} % of the tasks"
    )
    if repeats.deviation:
        text += f" and seeds deviate by {repeats.deviation:.3f} beyond that"
    return f"{text} ({repeats.source})." + ("" if seeds > 1 else " Other seeds may differ more.")


def many(count: int, what: str) -> str:
    """The count with the word, in the plural unless it is one."""
    return f"{count} {what}" + ("" if count == 1 else "s")


def p_value(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"
