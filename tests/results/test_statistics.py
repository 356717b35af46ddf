"""Intervals and tests against known answers."""

from __future__ import annotations

import numpy as np
import pytest

from trace_bench.core.summary import Interval
from trace_bench.results.statistics import (
    bootstrap_interval,
    paired_difference,
    permutation_p,
    task_means,
    wilson_interval,
)


def test_wilson_against_published_values() -> None:
    # 10 of 20 and 0 of 10 at 95 %: (0.2993, 0.7007) and (0, 0.2775), as in any textbook table.
    half = wilson_interval(10, 20)
    assert (round(half.low, 4), round(half.high, 4)) == (0.2993, 0.7007)
    none = wilson_interval(0, 10)
    assert none.low == pytest.approx(0.0, abs=1e-12)
    assert round(none.high, 4) == 0.2775


def test_wilson_holds_its_share_whatever_is_rounded() -> None:
    """Figures draw the distances to both ends, which must not be negative."""
    for n in range(1, 200):
        assert wilson_interval(n, n).high == 1.0 and wilson_interval(0, n).low == 0.0


def test_wilson_refuses_impossible_counts() -> None:
    with pytest.raises(ValueError, match=r"5 of 4"):
        wilson_interval(5, 4)


def test_bootstrap_agrees_with_the_normal_approximation() -> None:
    values = np.random.default_rng(1).normal(0.5, 0.2, size=400)
    interval = bootstrap_interval(values.tolist())
    half = 1.96 * values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.002)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.002)


def test_bootstrap_is_seeded_and_needs_values() -> None:
    values = [0.0, 1.0, 1.0, 0.5]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval([1.0] * 30) == Interval(1.0, 1.0, 1.0)  # no width
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([])


def test_permutation_equals_the_sign_test_for_equal_sizes() -> None:
    # 8 of 10 discordant pairs in favour: 2 * (1 + 10 + 45) / 1024.
    assert permutation_p([1.0] * 8 + [-1.0] * 2 + [0.0] * 50) == pytest.approx(112 / 1024)
    assert permutation_p([1.0] * 40) == pytest.approx(2 / 2**40)


def test_permutation_enumerates_few_pairs() -> None:
    # |sum| >= 6 of +-1 +-2 +-3 happens for the two extreme patterns of eight.
    assert permutation_p([1.0, 2.0, 3.0]) == pytest.approx(2 / 8)
    assert permutation_p([0.1, 0.2, -0.3]) == pytest.approx(1.0)
    assert permutation_p([0.0, 0.0]) == 1.0


def test_permutation_monte_carlo_is_never_zero() -> None:
    rng = np.random.default_rng(0)
    strong = permutation_p((rng.normal(1.0, 0.1, 60)).tolist())
    assert 0 < strong < 1e-3


def test_paired_difference_pairs_by_task() -> None:
    control = {f"t{i}": 0.0 for i in range(20)}
    treated = {task: float(i < 10) for i, task in enumerate(reversed(control))}
    result = paired_difference(treated, control)
    assert result.value == pytest.approx(0.5)
    assert result.discordant == 10
    assert result.n == 20
    assert result.p_value == pytest.approx(2 / 1024)
    assert result.low < 0.5 < result.high


def test_paired_difference_refuses_other_tasks() -> None:
    with pytest.raises(ValueError, match="different tasks"):
        paired_difference({"a": 1.0}, {"a": 1.0, "b": 0.0})


def test_task_means_average_trials() -> None:
    assert task_means([("a", 1.0), ("b", 0.0), ("a", 0.0)]) == {"a": 0.5, "b": 0.0}
