"""The main tables: every method over the budgets, every method at one budget, and the caption that
stands with every table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trace_bench.results import beginnings, facts
from trace_bench.results.compare import (
    Cell,
    Difference,
    base_of,
    cells,
    difference,
    holm,
)
from trace_bench.results.records import Record, training_tasks
from trace_bench.results.rules import RULES
from trace_bench.results.statistics import FINEST_P
from trace_bench.results.style import style
from trace_bench.results.table import Table
from trace_bench.results.uncertainty import can_show, many, repeats_of


def describe(records: Sequence[Record], skipped: Sequence[str] = ()) -> str:
    """The facts in every caption: suite, split, protocol, counts, drops."""
    first = records[0].settings
    trials = first.get("evaluation.trials", 1)
    text = (
        f"{records[0].suite_name}, split {first['evaluation.split']}, protocol "
        f"{first['protocol']}, accounting {first.get('accounting', 'strict')}, "
        f"{len(records[0].success)} tasks, {_seeds(records)}, "
        f"{many(int(trials), 'trial')}. Floor (idle) {_bound(records[0], 'idle')}, ceiling "
        f"(reference) {_bound(records[0], 'reference')}. {_drops(records)} {_code(records)}"
    )
    if about := facts.line(records[0].about, facts.models(first)):
        text += f" About the suite: {about}."
    text += beginnings.caption(records)
    low, _ = _seed_counts(records)
    shown = can_show(len(records[0].success), low, int(trials), repeats_of(records))
    if skipped:
        shown += f" Run folders that could not be used: {len(skipped)}."
    return f"{text} {shown}"


def readable(records: Sequence[Record]) -> str:
    """What was run, in words for the caption of a figure."""
    first = records[0].settings
    trials = int(first.get("evaluation.trials", 1))
    trained = "the reported tasks" if first["protocol"] == "paper" else "other tasks"
    return (
        f"Suite {records[0].suite_name}, {len(records[0].success)} tasks of its "
        f"{first['evaluation.split']} split, methods trained on {trained}, {_seeds(records)}, "
        f"{many(trials, 'trial')}"
    )


def _seeds(records: Sequence[Record]) -> str:
    """How many seeds a cell has; two numbers where not all have the same."""
    low, high = _seed_counts(records)
    return many(high, "seed") if low == high else f"{low} to {high} seeds"


def _seed_counts(records: Sequence[Record]) -> tuple[int, int]:
    """The fewest and the most seeds of a cell."""
    counts = {
        len({r.seed for r in cell.records if training_tasks(r) == size})
        for size in {training_tasks(r) for r in records}
        for cell in cells([r for r in records if training_tasks(r) == size]).values()
    }
    return min(counts), max(counts)


def _code(records: Sequence[Record]) -> str:
    """What computed the runs: commits, and how many runs had files that were changed since."""
    known = [r.git for r in records if r.git]
    if not known:
        return ""
    commits = dict.fromkeys(str(g["commit"])[:7] for g in known)
    changed = sum(bool(g["changed"]) for g in known)
    text = f"Code of the {len(records)} runs: {', '.join(commits)}"
    return text + (f"; in {changed} of them files were changed since." if changed else ".")


def _bound(record: Record, name: str) -> str:
    return f"{record.floors[name]:.3f}" if name in record.floors else "not defined"


def _drops(records: Sequence[Record]) -> str:
    """The reporting rule and what happened to held-out episodes and rollouts on the way."""
    total: dict[str, int] = {}
    by: dict[str, dict[str, int]] = {"lost": {}, "rollouts_lost": {}, "limits": {}}
    for record in records:
        for key, value in record.drops.items():
            if isinstance(value, int):
                total[key] = total.get(key, 0) + value
            for name, count in value.items() if isinstance(value, Mapping) else ():
                by[key][name] = by[key].get(name, 0) + count
    rule = records[0].rule
    return (
        f"Rule {rule} ({RULES[rule]}): of {total.get('episodes', 0)} held-out episodes the "
        f"infrastructure lost {_parts(by['lost'])}; {total.get('retried', 0)} were retried, "
        f"{total.get('excluded', 0)} left out, {total.get('zeroed', 0)} counted as failures; "
        f"cut off by a limit: {_parts(by['limits'])}. Rollouts of the methods that were lost: "
        f"{_parts(by['rollouts_lost'])}."
    )


def _parts(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    named = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{total} ({named})" if total else "0"


def rollout_scaling(found: Mapping[tuple[str, int], Cell], caption: str) -> Table:
    """Success by method and budget, each with its interval over tasks and seeds."""
    budgets = sorted({budget for _, budget in found})
    methods = list(dict.fromkeys(method for method, _ in found))
    rows = []
    for method in methods:
        row = [method]
        for budget in budgets:
            cell = found.get((method, budget))
            row.append(in_cell(cell) if cell else "not run")
        rows.append(tuple(row))
    text = f"Success by rollout budget with 95 % intervals over tasks and seeds. {caption}"
    header = ("method", *(f"{budget}" for budget in budgets))
    return Table("rollout_scaling", text, header, tuple(rows))


def in_cell(cell: Cell) -> str:
    """Success with its interval, as it stands in tables."""
    interval = cell.interval()
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


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
        spent = sum(r.total for r in records) / len(records)
        before = sum(r.before or 0 for r in records) / len(records)
        rows.append(
            (
                method,
                f"{len(records)}",
                f"{spent:.0f}" + (f" ({before:.0f} before)" if before else ""),
                in_cell(cell),
                f"{sum(r.similarity for r in records) / len(records):.3f}",
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
        return f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]{'*' if clear else ''}"

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
    if control not in at and beginnings.began_apart(runs):
        return {}  # the runs' own base agents are not one agent
    return {
        m: difference(cell, at[control] if control in at else base_of(cell))
        for m, cell in at.items()
        if m != control
    }


def _difference(found: Difference | None, p: float | None) -> tuple[str, str]:
    if found is None or p is None:
        return "", ""
    d = found.interval
    text = f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]"
    if found.p <= FINEST_P:  # no flips at all reached it: the correction multiplies that bound
        return text, f"<{p:.1g}" if p >= 0.0001 else "<0.0001"
    return text, "<0.0001" if p < 0.0001 else f"{p:.4f}"


def by_training_tasks(records: Sequence[Record], level: Sequence[Record], caption: str) -> Table:
    """Success by number of training tasks and budget, one row a method and number; below them the
    `level` methods, which do not look at the training tasks."""
    budgets = sorted({r.budget for r in records})
    parts: list[tuple[str, Sequence[Record]]] = [
        (f"{size}", [r for r in records if training_tasks(r) == size])
        for size in sorted({training_tasks(r) for r in records})
    ]
    rows = []
    for name, some in [*parts, ("any", level)]:
        found = cells(some)
        for method in dict.fromkeys(m for m, _ in found):
            row = [name, method]
            row += [
                in_cell(found[method, b]) if (method, b) in found else "not run" for b in budgets
            ]
            rows.append(tuple(row))
    text = (
        "Success by number of training tasks and rollout budget, with 95 % intervals over tasks "
        f"and seeds. {caption}"
    )
    if level:
        text += " The methods at `any` do not look at the training tasks"
        text += f" ({len({r.seed for r in level})} seeds)."
    return Table("training_tasks", text, ("tasks", "method", *map(str, budgets)), tuple(rows))
