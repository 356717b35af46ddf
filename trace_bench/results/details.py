"""Detail tables: routing, selection, parts of the tasks, cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trace_bench.core.types import grouped
from trace_bench.results.cells import Cell, Cells, Difference, by_cell, cells, difference, scored
from trace_bench.results.run import Run
from trace_bench.results.statistics import holm, many, mean
from trace_bench.results.table import Table, style

PURPOSES = ("analysis", "calibration", "training", "prompt", "validation")


def routing(runs: Sequence[Run], caption: str) -> Table:
    """TRACE's success with the router's choice, the oracle's choice and the best single adapter."""

    def row(cell: Cell) -> Iterator[list[str]]:
        figures = [r.routing for r in cell.runs if r.routing is not None]
        columns: list[list[float | None]] = [
            [len(r.adapters) for r in cell.runs],
            [r.mean for r in cell.runs],
            [f.oracle_score.success for f in figures],
            [f.single_score.success for f in figures],
            [f.agreement for f in figures],
            [f.agreement_decisive for f in figures],
        ]  # None: every episode was lost
        scores = [[v for v in column if v is not None] for column in columns]
        yield [f"{mean(values):.3f}" if values else "" for values in scores]

    text = (
        "Routing: success of the routed agent, of the best choice for each task (which looks at "
        "the scores and takes one adapter, so it bounds no route that adds adapters up) and of the "
        "best single adapter; how often the router's choice is as good as the best, on all tasks "
        f"and where it matters. Means over seeds. {caption}"
    )
    header = ("adapters", "routed", "oracle", "single", "agreement", "decisive")
    routed = cells([r for r in runs if r.routing is not None])
    return by_cell("routing", text, header, dict(sorted(routed.items())), row)


def selection(runs: Sequence[Run], caption: str) -> Table:
    """How often runs of a budget selected a capability, and how well labelling runs agreed."""
    focus = sorted((r for r in runs if r.label == style().focus), key=lambda r: r.budget)
    at = grouped(focus, lambda r: r.budget)
    names = sorted({n for runs in at.values() for r in runs for n in (*r.capabilities, *r.votes)})
    rows = [(name, *(_selected(name, runs) for runs in at.values())) for name in names]
    text = (
        "Runs of TRACE in which a capability was selected, by budget; in brackets the share of a "
        "run's labelling runs that found it lacking by the thresholds, mean over all runs. "
        f"{caption}"
    )
    return Table("selection", text, ("capability", *map(str, at)), tuple(rows))


def _selected(name: str, runs: Sequence[Run]) -> str:
    count = sum(name in r.capabilities for r in runs)
    shares = [r.votes[name][0] / r.votes[name][1] for r in runs if r.votes.get(name, (0, 0))[1]]
    return f"{count} of {len(runs)}" + (f" ({mean(shares):.2f})" if shares else "")


def by_needs(grid: Cells, caption: str) -> Table:
    """Success on the tasks that need none, one, or several capabilities, by their suite's word."""
    needs = next((r.needs for cell in grid.values() for r in cell.runs if r.needs), ())
    places = kinds_of(needs)

    def row(cell: Cell) -> Iterator[list[str]]:
        if places:
            yield [cell.on(where).text for where in places.values()]

    text = (
        "Success by how many capabilities a task needs, by its suite's own word, with 95 % "
        f"intervals over tasks and seeds. {caption}"
    )
    header = [f"{n} ({len(places_of)} tasks)" for n, places_of in places.items()]
    return by_cell("needs", text, header, grid, row)


def kinds_of(needs: Sequence[int]) -> dict[str, list[int]]:
    """The places of the tasks that need no, one or several capabilities, where there are some."""
    kinds = ("none", "one", "several")
    places = {name: [i for i, n in enumerate(needs) if kinds[min(n, 2)] == name] for name in kinds}
    return {name: tasks for name, tasks in places.items() if tasks}


def by_world(grid: Cells, caption: str) -> Table:
    """A row for each method and budget, with each world's success and, but for the base agent's own
    runs, its difference to what their base agents score there. No rows where there is one world."""
    worlds = next((r.worlds for cell in grid.values() for r in cell.runs if r.worlds), ())
    places = {
        w: [i for i, world_of in enumerate(worlds) if world_of == w] for w in dict.fromkeys(worlds)
    }
    differences: dict[tuple[str, int, str], Difference] = {}
    for (method, budget), cell in grid.items():
        for world, where in places.items():
            one = cell.on(where)
            if method != style().control and scored(one, one.base):
                differences[method, budget, world] = difference(one, one.base)
    corrected = holm({str(key): d.p for key, d in differences.items()})

    def row(cell: Cell) -> Iterator[list[str]]:
        columns: list[str] = []
        for world, where in places.items():
            key = (cell.method, cell.budget, world)
            less = differences[key].columns(corrected[str(key)]) if key in differences else ("", "")
            columns += (cell.on(where).text, *less)
        if places:
            yield columns

    text = (
        "Success in each of several worlds, with 95 % intervals over tasks and seeds, and against "
        "the base agent as each run's own evaluation has it. Paired by task; p Holm-corrected over "
        f"{many(len(differences), 'comparison')}. {caption}"
    )
    header = [
        name
        for world, where in places.items()
        for name in (f"{world} ({many(len(where), 'task')})", f"vs {style().control}", "p")
    ]
    return by_cell("worlds", text, header, grid, row)


def cost(grid: Cells, caption: str) -> Table:
    """Rollouts by purpose, tokens and wall time of the method's phases, means over seeds."""

    def row(cell: Cell) -> Iterator[tuple[str, ...]]:
        phases = [f"method/{p} rollouts" for p in PURPOSES]
        seconds = ("", "")
        if timed := [r.wall_s for r in cell.runs if "method" in r.wall_s]:
            playing = sum(mean([w.get(p, 0.0) for w in timed]) for p in phases)
            seconds = (f"{playing:.1f}", f"{mean([w['method'] for w in timed]) - playing:.1f}")
        yield (
            *(f"{mean([r.rollouts.get(p, 0) for r in cell.runs]):.0f}" for p in PURPOSES),
            f"{cell.budget - cell.mean(lambda r: r.total):.0f}",
            f"{cell.mean(lambda r: r.tokens) / 1000:.0f}",
            *seconds,
        )

    text = (
        "Cost: rollouts by purpose, thousands of tokens in them, seconds of playing them and of "
        f"everything else in the method (updates, labels, checkpoints), means over seeds. {caption}"
    )
    header = (*PURPOSES, "unspent", "kilotokens", "s playing", "s other")
    return by_cell("cost", text, header, grid, row)
