"""`results plan DIFFERENCE PLACES...`: how many seeds and tasks show it, and what they cost, by how
runs of the same world varied, with the world of the tables' test (`statistics.uncertainty`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.results.cells import Cell, cells, difference
from trace_bench.results.groups import groups_of
from trace_bench.results.places import say
from trace_bench.results.run import Run
from trace_bench.results.statistics import ALPHA, Uncertainty, many, mean
from trace_bench.results.table import Table

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Varied:
    """How runs of one world varied. `apart`: the variance over tasks of the true difference of two
    methods; `flips`: how often two seeds disagree on a task; `deviation`: that of a seed's true
    mean; `tasks`, `rollouts`, `minutes` (method and evaluations; nan: unknown): of a run; `source`:
    what it follows from."""

    apart: float
    flips: float
    deviation: float
    tasks: int
    rollouts: float
    minutes: float
    source: str

    def detectable(self, seeds: int, tasks: int, level: float) -> float:
        """The smallest true difference of two methods that is found with a power of 80 %."""
        per_task = (self.apart + self.flips / seeds) / tasks
        per_seed = 2 * (self.deviation**2 + self.flips / (2 * tasks)) / seeds
        return Uncertainty(per_task, tasks - 1, per_seed, 2 * (seeds - 1)).detectable(level)

    def seeds(self, size: float, tasks: int, level: float) -> int | None:
        """The fewest seeds that show a difference of this size; None where no number does."""
        shows = (s for s in range(2, MOST_SEEDS) if self.detectable(s, tasks, level) <= size)
        return next(shows, None)


def varied(runs: Sequence[Run]) -> Varied:
    """From the largest group; UserError without two methods of two seeds each at one budget."""
    groups = groups_of(runs)
    if others := groups[1:]:
        count = many(sum(len(g.runs) for g in others), "run")
        named = many(len(others), "other group")
        say("left out", [f"{count} of {named}; `results plan --across SETTING` joins groups"])
    largest = groups[0].runs if groups else ()
    repeated = [cell for cell in cells(largest).values() if len(cell.runs) > 1]
    pairs = [(a, b) for a, b in itertools.combinations(repeated, 2) if a.budget == b.budget]
    if not pairs:
        raise UserError(
            "a plan needs finished runs of two methods with at least two seeds each, at one "
            "budget. Name more runs of the same world."
        )
    tasks, used = len(largest[0].success), [r for c in repeated for r in c.runs]
    flips = mean([2 * _within(cell) for cell in repeated])
    excess = [float(np.var(c.seed_means, ddof=1)) - _within(c) / tasks for c in repeated]
    seeds = mean([max(0.0, variance) for variance in excess])
    apart = mean([_apart(*pair, tasks) for pair in pairs])
    timed = [r.wall_s["total"] / 60 for r in used if "total" in r.wall_s]
    where = f"{used[0].suite_name}, split {used[0].settings['evaluation.split']}"
    return Varied(
        max(0.0, apart), flips, seeds**0.5, tasks,
        mean([r.total for r in used]), mean(timed) if timed else math.nan,
        f"{many(len(used), 'run')} of {many(len(repeated), 'method')} and budgets in {where}",
    )  # fmt: skip


def _within(cell: Cell) -> float:
    """The variance over seeds of one task's success, mean over the tasks; it holds the seed's own
    deviation, which is small beside it."""
    return float(np.nanmean(np.nanvar(cell.matrix, axis=0, ddof=1)))


def _apart(one: Cell, two: Cell, tasks: int) -> float:
    noise = sum(_within(c) / len(c.runs) for c in (one, two))
    return difference(one, two).uncertainty.tasks * tasks - noise


def text(size: float, world: Varied, comparisons: int) -> str:
    """The plan as a table."""
    rows: list[tuple[str, ...]] = []
    for tasks in sorted({max(1, world.tasks // 2), *(n * world.tasks for n in (1, 2, 4))}):
        seeds = world.seeds(size, tasks, ALPHA / comparisons)
        if seeds is None:
            rows.append((f"{tasks}", f"none below {MOST_SEEDS}", "", ""))
            continue
        minutes = "" if math.isnan(world.minutes) else f"{seeds * world.minutes:.0f}"
        rows.append((f"{tasks}", f"{seeds}", f"{seeds * world.rollouts:.0f}", minutes))
    caption = (
        f"A difference of {size:g} between two methods, found four times in five with "
        f"{many(comparisons, 'comparison')} (each at 5 % / {comparisons}). From {world.source}: "
        f"seeds disagree on {world.flips:.1%} of the tasks, a seed's mean deviates by "
        f"{world.deviation:.3f}, the methods' differences by {world.apart**0.5:.3f} between tasks. "
        "Minutes are those of the records' tasks and machine. A table that is made again with more "
        "seeds until a star appears finds more than 5 % by chance."
    )
    header = ("tasks", "seeds", "rollouts a method", "minutes a method")
    return Table("plan", caption, header, tuple(rows)).markdown()
