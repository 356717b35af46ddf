"""Intervals over tasks and seeds, and what a design can show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench.intervals import coverage, false_stars
from synthetic import record

from trace_bench.results.captions import repeats_of
from trace_bench.results.cells import Cell, difference
from trace_bench.results.statistics import (
    ASSUMED,
    Repeats,
    Uncertainty,
    can_show,
    smallest,
    uncertainty,
)


def test_seeds_alone_give_the_t_interval_of_their_means() -> None:
    """Five means with deviation 1: 2.776 / sqrt(5), from any table of t."""
    means = [-1.2, -0.6, 0.0, 0.6, 1.2]
    scale = float(np.std(means, ddof=1))
    found = uncertainty([0.5] * 100, [m / scale for m in means])
    assert found.tasks == 0 and found.seed_freedom == 4
    assert found.width(0.975) == pytest.approx(2.776 / 5**0.5, abs=0.001)


def test_two_agents_have_welchs_degrees_of_freedom() -> None:
    alike = uncertainty([0.0, 1.0], [0.0, 1.0, 2.0], [4.0, 5.0, 6.0])
    assert alike.seeds == pytest.approx(2 / 3) and alike.seed_freedom == pytest.approx(4)
    steady = uncertainty([0.0, 1.0], [0.0, 1.0, 2.0], [5.0, 5.0, 5.0])
    assert steady.seed_freedom == pytest.approx(2)


def test_one_task_or_one_seed_is_not_taken_for_certainty() -> None:
    one = Cell("m", 640, (record("m", [1.0]),)).interval()
    assert (one.value, one.low, one.high) == (1.0, pytest.approx(0.2065, abs=1e-4), 1.0)
    all_fail = Cell("m", 640, tuple(record("m", [0.0] * 20, s) for s in range(3))).interval()
    assert (all_fail.low, all_fail.high) == pytest.approx((0.0, 0.1611), abs=1e-4)
    few = Cell("m", 640, tuple(record("m", [1.0, 0.0, 1.0], s) for s in range(3))).interval()
    assert 0.0 <= few.low < 2 / 3 < few.high <= 1.0


def test_lost_episodes_do_not_look_like_seeds_that_differ() -> None:
    """A seed that lost the hard task is no better seed."""
    cell = Cell("m", 640, (record("m", [1.0, 1.0, 0.0]), record("m", [1.0, 1.0, None], seed=1)))
    assert cell.seed_means[0] == pytest.approx(cell.seed_means[1])


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_p_and_the_interval_are_one_statement(seeds: int) -> None:
    """p is below 0.05 exactly where the 95 % interval leaves out 0, and falls with the value."""
    rng = np.random.default_rng(seeds)
    means = rng.normal(0, 0.03, (2, seeds)).tolist() if seeds > 1 else []
    found = uncertainty(rng.normal(0, 0.4, 387).tolist(), *means)
    edge = found.width(0.975)
    assert found.p(edge) == found.p(-edge) == pytest.approx(0.05)
    values = [0.0, edge / 2, 0.999 * edge, 1.001 * edge, 2 * edge]
    p = [found.p(value) for value in values]
    assert p[0] == 1 and p == sorted(p, reverse=True) and p[2] > 0.05 > p[3]


def test_p_is_no_smaller_than_so_many_tasks_can_show() -> None:
    assert uncertainty([1.0] * 5).p(1.0) == 1 / 16 and uncertainty([1.0]).p(1.0) == 1
    assert uncertainty([1.0] * 400).p(1.0) == pytest.approx(1e-12)


@pytest.mark.slow
def test_tables_of_equal_methods_have_few_stars() -> None:
    """At the deviation of the records' seeds; sign flips over tasks gave half of them one."""
    assert false_stars(seeds=5, tasks=387, deviation=0.045, draws=60) <= 0.05


def test_the_detectable_difference_has_the_power_it_says() -> None:
    """Simulated: differences of that size are significant in about 80 % of the draws, with five
    seeds as well as with tasks alone; for more comparisons they must be larger."""
    rng = np.random.default_rng(2)
    spread = 0.05
    size = Uncertainty(0.0, 99, 2 * spread**2 / 5, 8).detectable()
    found = [
        uncertainty([0.0] * 100, rng.normal(size, spread, 5).tolist(), one.tolist())
        for one in rng.normal(0, spread, (300, 5))
    ]
    assert all(f.seeds > 0 for f in found)
    means = rng.normal(size, spread, (4000, 5)), rng.normal(0, spread, (4000, 5))
    errors = np.sqrt((means[0].var(1, ddof=1) + means[1].var(1, ddof=1)) / 5)
    t = (means[0].mean(1) - means[1].mean(1)) / errors
    assert float((np.abs(t) > 2.306).mean()) == pytest.approx(0.8, abs=0.03)
    assert Uncertainty(1e-4, 400).detectable() == pytest.approx(0.028, abs=0.0002)
    assert Uncertainty(1e-4, 400).detectable(0.05 / 13) > 1.3 * Uncertainty(1e-4, 400).detectable()


def test_what_a_design_can_show_follows_from_its_repeats() -> None:
    # 2.802 sqrt(0.2 / 400), by hand; four times as many episodes halve it.
    assert smallest(400, 1, 1, ASSUMED) == pytest.approx(0.0627, abs=0.0001)
    assert smallest(400, 2, 2, ASSUMED) == pytest.approx(0.0313, abs=0.0001)
    assert smallest(400, 5, 1, Repeats(0.2, "", 0.06, 8)) > 0.1
    assert "assumption `flips`" in can_show(400, 1, 1) and "Other seeds" in can_show(400, 1, 1)
    assert "1 seed and 2 trials can show" in can_show(400, 1, 2)
    assert "Other seeds" not in can_show(400, 2, 1)
    noisy = Repeats(1.0, "", 0.3, 1)
    assert smallest(3, 2, 1, noisy) > 1 and "can show (" in can_show(3, 2, 1, noisy)
    assert "task): none (not even a difference of 1)" in can_show(3, 2, 1, noisy)


def test_repeats_are_read_from_seeds() -> None:
    one, two = (record("grpo", [1, 1, 0, 0] * 25, 0), record("grpo", [1, 0, 0, 0] * 25, 1))
    seeds = repeats_of([one, two])
    assert seeds.flips == pytest.approx(0.25) and "between the seeds" in seeds.source
    # The means 0.5 and 0.25 differ by more than flips of 100 tasks explain.
    assert seeds.deviation == pytest.approx((0.03125 - 0.25 / 200) ** 0.5)
    assert repeats_of([one, replace(two, method="trace")]) is ASSUMED
    still = [record("base", [1, 0], s) for s in (0, 1)]
    assert repeats_of([*still, one, two]).flips == pytest.approx(0.25)
    assert repeats_of(still) is ASSUMED


def test_the_null_difference_of_equal_seeds_is_within_its_interval() -> None:
    rng = np.random.default_rng(4)
    cells = [
        Cell(m, 640, tuple(record(m, (rng.random(80) < 0.5).tolist(), s) for s in range(5)))
        for m in ("a", "b")
    ]
    found = difference(*cells)
    assert found.interval.low < 0 < found.interval.high
    assert found.uncertainty.seed_freedom <= 8


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.0, 0.03, 0.06, 0.12])
def test_intervals_hold_as_often_as_they_say(deviation: float) -> None:
    """95 % or a little more of 1,500 draws, for a method and for a difference of two; the error of
    a simulated share is 0.006."""
    for seeds in (3, 5):
        for share in coverage(seeds, 128, deviation, 1500):
            assert 0.938 <= share <= 1.0
