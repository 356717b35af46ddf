"""Success by world, of runs whose held-out tasks are of several (`env.domain=[airline,retail]`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trace_bench.results.compare import (
    Cell,
    Cells,
    Difference,
    base_of,
    by_cell,
    difference,
    holm,
    only,
)
from trace_bench.results.statistics import many
from trace_bench.results.table import Table, estimate, gap, p_value, style


def by_world(found: Cells, caption: str) -> Table:
    """A row for each method and budget, with each world's success and, but for the base agent's own
    runs, its difference to what their base agents score there. No rows where there is one world."""
    known = next((r.worlds for cell in found.values() for r in cell.records if r.worlds), ())
    places = {w: [i for i, own in enumerate(known) if own == w] for w in dict.fromkeys(known)}
    made: dict[tuple[str, int, str], Difference] = {}
    for (method, budget), cell in found.items():
        for world, where in places.items():
            one = only(cell, where)
            if method != style().control and _scored(one, base_of(one)):
                made[method, budget, world] = difference(one, base_of(one))
    corrected = holm({str(key): d.p for key, d in made.items()})

    def row(cell: Cell) -> Iterator[list[str]]:
        columns: list[str] = []
        for world, where in places.items():
            one, key = only(cell, where), (cell.method, cell.budget, world)
            columns.append(estimate(one.interval()) if _scored(one, one) else "")
            shown = made.get(key)
            columns += ["", ""] if shown is None else [
                gap(shown.interval), p_value(corrected[str(key)])
            ]  # fmt: skip
        if places:
            yield columns

    text = (
        "Success in each of several worlds, with 95 % intervals over tasks and seeds, and against "
        "the base agent as each run's own evaluation has it. Paired by task; p Holm-corrected over "
        f"{many(len(made), 'comparison')}. {caption}"
    )
    header = [
        name
        for world, where in places.items()
        for name in (f"{world} ({many(len(where), 'task')})", f"vs {style().control}", "p")
    ]
    return by_cell("worlds", text, header, found, row)


def _scored(one: Cell, other: Cell) -> bool:
    """Whether there is a task with a score of both."""
    return not np.isnan(one.per_task - other.per_task).all()
