"""How often the 95 % intervals of the tables hold, and how many tables of equal methods have a
star: simulated methods whose true success is known.

    python tests/bench/intervals.py [--draws 2000] [--tasks 387]

A task's probability is drawn from 0.2 + 0.6 Beta(0.4, 0.4), so most tasks are hard or easy, each
seed shifts all of them by a normal deviation, and an episode succeeds or not. Tasks and seeds are
drawn anew each time; the true success is 0.5, the true difference of two such methods 0. A table
compares every method with every other; a star is a p-value that survives Holm's correction.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from trace_bench.results.statistics import Uncertainty, uncertainty


def coverage(seeds: int, tasks: int, deviation: float, draws: int) -> tuple[float, float]:
    """The share of draws in which the interval holds the truth: of a method, of a difference."""
    rng = np.random.default_rng([seeds, tasks, round(1000 * deviation)])
    held = [0, 0]
    for _ in range(draws):
        chance = 0.2 + 0.6 * rng.beta(0.4, 0.4, tasks)
        one, two = (_success(rng, chance, seeds, deviation) for _ in range(2))
        single = uncertainty(one.mean(0).tolist(), one.mean(1).tolist())
        pairs = ((one.mean() - 0.5, single), _difference(one, two))
        for i, (error, found) in enumerate(pairs):
            held[i] += abs(error) <= found.width(0.975)
    return held[0] / draws, held[1] / draws


def false_stars(seeds: int, tasks: int, deviation: float, draws: int, methods: int = 12) -> float:
    """The share of tables of equal methods that have a star."""
    rng = np.random.default_rng([seeds, tasks, round(1000 * deviation), methods])
    pairs = list(itertools.combinations(range(methods), 2))
    with_stars = 0
    for _ in range(draws):
        chance = 0.2 + 0.6 * rng.beta(0.4, 0.4, tasks)
        arms = [_success(rng, chance, seeds, deviation) for _ in range(methods)]
        gaps = (_difference(arms[i], arms[j]) for i, j in pairs)
        with_stars += any(found.p(float(gap)) < 0.05 / len(pairs) for gap, found in gaps)
    return with_stars / draws


def _difference(one: np.ndarray, two: np.ndarray) -> tuple[float, Uncertainty]:
    by_task, seeds = one.mean(0) - two.mean(0), (one.mean(1).tolist(), two.mean(1).tolist())
    return one.mean() - two.mean(), uncertainty(by_task.tolist(), *seeds)


def _success(
    rng: np.random.Generator, chance: np.ndarray, seeds: int, deviation: float
) -> np.ndarray:
    shifted = np.clip(chance + rng.normal(0, deviation, (seeds, 1)), 0, 1)
    return (rng.random(shifted.shape) < shifted).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--tasks", type=int, default=387)
    given = parser.parse_args()
    print("seeds  deviation  method  difference")
    for seeds in (3, 5):
        for deviation in (0.0, 0.03, 0.06, 0.12):
            one, two = coverage(seeds, given.tasks, deviation, given.draws)
            print(f"{seeds:5}  {deviation:9.2f}  {one:6.3f}  {two:10.3f}")
    print("seeds  deviation  tables of 12 equal methods with a star")
    for seeds in (3, 5):
        for deviation in (0.0, 0.03, 0.045, 0.07):
            found = false_stars(seeds, given.tasks, deviation, given.draws // 5)
            print(f"{seeds:5}  {deviation:9.3f}  {found:.3f}")


if __name__ == "__main__":
    main()
