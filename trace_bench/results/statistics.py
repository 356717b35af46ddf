"""Intervals and paired tests over tasks. Pure functions on numbers; every draw is seeded.

A task is the unit of sampling: trials of one task are averaged first (`task_means`), because two
trials of a task say less about an agent than two tasks do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95  # of every interval
RESAMPLES = 10_000
EXACT_PAIRS = 14  # 2^14 sign patterns take a few milliseconds


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference(Interval):
    """Mean of `treated - control` over the same tasks, its interval and a two-sided p-value."""

    p_value: float
    n: int
    discordant: int  # tasks on which the two differ


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def task_means(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Mean per task over its trials, in order of first appearance."""
    values: dict[str, list[float]] = {}
    for task, value in pairs:
        values.setdefault(task, []).append(float(value))
    return {task: mean(v) for task, v in values.items()}


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap interval of the mean; one value per task.

    Raises ValueError for an empty sample: a mean of nothing is a mistake of the caller.
    """
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
    """Wilson's score interval for a proportion; sound at 0 and n, where a bootstrap has no width.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference,
    JASA 22 (1927).
    """
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"successes must lie in 0..n with n > 0, got {successes} of {n}")
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = successes / n
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def share_interval(values: Sequence[float]) -> Interval:
    """95 % interval of a mean of success shares, one per task: a bootstrap, and Wilson's where
    every task succeeded or every task failed. Raises ValueError for an empty sample."""
    if values and (all(v == 0 for v in values) or all(v == 1 for v in values)):
        return wilson_interval(sum(values), len(values))
    return bootstrap_interval(values)


FINEST_P = 1 / (RESAMPLES * 2 + 1)
"""The smallest Monte Carlo p-value of `permutation_p`: no sign flip reached the observed value."""


def permutation_p(differences: Sequence[float], *, resamples: int = RESAMPLES * 2) -> float:
    """Two-sided p-value of the paired sign-flip test of "mean difference is 0".

    Exact when all differences have one size (single-trial success: the sign test, McNemar's exact
    test) and when at most `EXACT_PAIRS` differ; otherwise Monte Carlo with the +1 correction, so
    that it is never 0. Without any difference p is 1.
    """
    sample = _sample(differences)
    changed = sample[sample != 0]
    if changed.size == 0:
        return 1.0
    observed = abs(float(changed.sum()))
    sizes = np.abs(changed)
    if np.allclose(sizes, sizes[0]):
        return _sign_test(int((changed > 0).sum()), changed.size)
    # Sums that are equal on paper differ in the last bits; count them as equal.
    bound = observed - 1e-9 * max(1.0, float(sizes.sum()))
    if changed.size <= EXACT_PAIRS:
        patterns = np.arange(2**changed.size)[:, None] >> np.arange(changed.size) & 1
        sums = (2 * patterns - 1) @ sizes
        return float((np.abs(sums) >= bound).mean())
    rng = np.random.default_rng(0)
    hits = 0
    width, total = -(-changed.size // 8), float(sizes.sum())
    for start in range(0, resamples, 1000):
        rows = min(1000, resamples - start)
        drawn = np.frombuffer(rng.bytes(rows * width), np.uint8).reshape(rows, width)
        kept = np.unpackbits(drawn, axis=1)[:, : changed.size].astype(float)
        hits += int((np.abs(2 * (kept @ sizes) - total) >= bound).sum())
    return (hits + 1) / (resamples + 1)


def paired_difference(
    treated: Mapping[str, float], control: Mapping[str, float]
) -> PairedDifference:
    """Difference of two agents on the same tasks; the dictionaries map task ids to values.

    Raises ValueError when the two were not measured on the same tasks: an unpaired remainder
    would bias the difference silently.
    """
    if treated.keys() != control.keys():
        odd = sorted(treated.keys() ^ control.keys())
        raise ValueError(f"the agents were measured on different tasks, e.g. {odd[:3]}")
    sample = _sample([treated[task] - control[task] for task in control])
    values = sample.tolist()
    changed = int((sample != 0).sum())
    found = bootstrap_interval(values)
    return PairedDifference(
        **vars(found), p_value=permutation_p(values), n=len(values), discordant=changed
    )


def pass_hat(passes: Iterable[Sequence[int]], k: int) -> float | None:
    """pass^k: the probability that k trials of a task all succeed, mean over tasks. `passes` holds
    [successes, trials] per task; tasks with fewer than k trials are left out, None without any.

    Unbiased per task: C(successes, k) / C(trials, k). Source: tau-bench (arXiv 2406.12045).
    """
    known = [math.comb(c, k) / math.comb(n, k) for c, n in passes if n >= k]
    return mean(known) if known else None


def _sample(values: Sequence[float]) -> np.ndarray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("no values: an interval needs at least one task")
    return sample


def _sign_test(positive: int, n: int) -> float:
    """Two-sided exact binomial test with share 1/2."""
    tail = sum(math.comb(n, k) for k in range(min(positive, n - positive) + 1))
    return min(1.0, 2 * tail / 2**n)
