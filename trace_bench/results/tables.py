"""The main tables: every method over the budgets, and every method at one budget."""

from __future__ import annotations

from collections.abc import Mapping

from trace_bench.results.captions import began_apart
from trace_bench.results.compare import Cell, Difference, base_of, difference, holm
from trace_bench.results.statistics import FINEST_P, mean
from trace_bench.results.style import style
from trace_bench.results.table import Table, estimate, gap
from trace_bench.results.uncertainty import many


def rollout_scaling(found: Mapping[tuple[str, int], Cell], caption: str) -> Table:
    """Success by method and budget, each with its interval over tasks and seeds."""
    budgets = sorted({budget for _, budget in found})
    methods = list(dict.fromkeys(method for method, _ in found))
    rows = []
    for method in methods:
        row = [method]
        for budget in budgets:
            cell = found.get((method, budget))
            row.append(estimate(cell.interval()) if cell else "not run")
        rows.append(tuple(row))
    text = f"Success by rollout budget with 95 % intervals over tasks and seeds. {caption}"
    header = ("method", *(f"{budget}" for budget in budgets))
    return Table("rollout_scaling", text, header, tuple(rows))


def comparison(found: Mapping[tuple[str, int], Cell], budget: int, caption: str) -> Table:
    """Every method at one budget against the base agent and against the method in focus (TRACE),
    paired by task, with p-values corrected (Holm) for all comparisons of the table."""
    at = {method: cell for (method, b), cell in found.items() if b == budget}
    control, focus = style().control, style().focus
    against_control, against_focus = _against(at, control), _against(at, focus)
    raw = {f"{m}/{control}": d.p for m, d in against_control.items()}
    raw |= {f"{m}/{focus}": d.p for m, d in against_focus.items() if f"{focus}/{m}" not in raw}
    corrected = holm(raw)
    rows = []
    for method, cell in at.items():
        records = cell.records
        spent = mean([r.total for r in records])
        before = mean([r.before or 0 for r in records])
        rows.append(
            (
                method,
                f"{len(records)}",
                f"{spent:.0f}" + (f" ({before:.0f} before)" if before else ""),
                estimate(cell.interval()),
                f"{mean([r.similarity for r in records]):.3f}",
                *_difference(against_control.get(method), corrected.get(f"{method}/{control}")),
                *(
                    _difference(against_focus.get(method), corrected.get(f"{method}/{focus}"))
                    if against_focus
                    else ()
                ),
            )
        )
    made = (*against_control.values(), *against_focus.values())
    size = max((d.uncertainty.detectable(len(corrected)) for d in made), default=0.0)
    text = (
        f"All methods at {budget} rollouts. {caption} Differences are paired by task; p by sign "
        "flips over tasks for the seeds that were run, Holm-corrected over "
        f"{many(len(corrected), 'comparison')}; intervals are over tasks and seeds, the wider "
        "statement: where they hold 0, a small p speaks of these seeds only. "
        f"{_found_from(size)}"
        if corrected
        else f"All methods at {budget} rollouts. {caption} One agent, compared with no other."
    )
    if corrected and control not in at:
        text += f" The {control} agent is that of each run's own evaluation."
    header = (
        *("method", "runs", "rollouts", "success", "similarity"),
        *(f"vs {control}", "p"),
        *((f"vs {focus}", "p") if against_focus else ()),
    )
    return Table(f"comparison_{budget}", text, header, tuple(rows))


def _found_from(size: float) -> str:
    """`size`: the smallest difference that the noisiest comparison can show; above 1 there is
    none."""
    if size > 1:
        return "The noisiest of these comparisons can show no difference, not even one of 1."
    return (
        f"A true difference of {size:.3f} would be found with a power of 80 % over tasks and "
        "seeds, in the noisiest of these comparisons."
    )


def pairs(found: Mapping[tuple[str, int], Cell], budget: int, caption: str) -> Table | None:
    """Every method against every other at one budget: row less column. None for one alone."""
    at = {method: cell for (method, b), cell in found.items() if b == budget}
    names = list(at)
    if len(names) < 2:
        return None
    differences = {
        (one, two): difference(at[one], at[two]) for i, one in enumerate(names) for two in names[:i]
    }
    corrected = holm({f"{one}/{two}": d.p for (one, two), d in differences.items()})

    def shown(one: str, two: str) -> str:
        if (one, two) not in differences:
            return ""
        d = differences[one, two].interval
        clear = corrected[f"{one}/{two}"] < 0.05 and not d.low <= 0 <= d.high
        return f"{gap(d)}{'*' if clear else ''}"

    text = (
        f"Success at {budget} rollouts: row less column, paired by task, with 95 % intervals over "
        "tasks and seeds. A star: the interval leaves out 0, and p by sign flips over tasks, "
        f"Holm-corrected over all {len(corrected)} pairs, is below 0.05. {caption}"
    )
    rows = tuple((one, *(shown(one, two) for two in names[:-1])) for one in names)
    return Table(f"pairs_{budget}", text, ("method", *names[:-1]), rows)


def _against(at: Mapping[str, Cell], control: str) -> dict[str, Difference]:
    """Each method against `control`; without runs of the base agent, against the one that each run
    evaluated itself."""
    if control not in at and control != style().control:
        return {}
    runs = [record for cell in at.values() for record in cell.records]
    if control not in at and began_apart(runs):
        return {}  # the runs' own base agents are not one agent
    return {
        m: difference(cell, at[control] if control in at else base_of(cell))
        for m, cell in at.items()
        if m != control
    }


def _difference(found: Difference | None, p: float | None) -> tuple[str, str]:
    if found is None or p is None:
        return "", ""
    text = gap(found.interval)
    if found.p <= FINEST_P:  # no flips at all reached it: the correction multiplies that bound
        return text, f"<{p:.1g}" if p >= 0.0001 else "<0.0001"
    return text, "<0.0001" if p < 0.0001 else f"{p:.4f}"
