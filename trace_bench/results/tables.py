"""Tables: what they hold, and the same content as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trace_bench.results.compare import Cell, Difference, detectable, difference, holm
from trace_bench.results.records import Record


@dataclass(frozen=True)
class Table:
    """`rows` of text under `header`; the first column is left-aligned."""

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        line = "| " + " | ".join(self.header) + " |"
        rule = "|" + "|".join(["---", *["---:"] * (len(self.header) - 1)]) + "|"
        body = ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([self.caption, "", line, rule, *body]) + "\n"

    def latex(self) -> str:
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [" & ".join(map(_tex, row)) + r" \\" for row in self.rows]
        return (
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{_tex(self.caption)}}}",
                    rf"\begin{{tabular}}{{{columns}}}",
                    r"\toprule",
                    " & ".join(map(_tex, self.header)) + r" \\",
                    r"\midrule",
                    *lines,
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
            + "\n"
        )

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.header, *self.rows])
        return out.getvalue()


def _tex(text: str) -> str:
    for mark in "&%_#$":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("~", r"\textasciitilde{}").replace("^", r"\textasciicircum{}")


def describe(records: Sequence[Record], skipped: Sequence[str] = ()) -> str:
    """Suite, split, protocol, how many of what, drops: what every caption says."""
    first = records[0].settings
    seeds = {r.seed for r in records}
    trials = first.get("evaluation.trials", 1)
    lost: dict[str, int] = {}
    for record in records:
        for boundary, count in record.lost.items():
            lost[boundary] = lost.get(boundary, 0) + count
    text = (
        f"{first['env.name']}/{first['env.suite']}, split {first['evaluation.split']}, protocol "
        f"{first['protocol']}, {len(records[0].success)} tasks, {_many(len(seeds), 'seed')}, "
        f"{_many(int(trials), 'trial')}. Floor (idle) {records[0].floors.get('idle', 0):.3f}, "
        f"ceiling (reference) {records[0].floors.get('reference', 0):.3f}. Episodes lost to the "
        f"infrastructure: {sum(lost.values())}"
    )
    if lost:
        text += " (" + ", ".join(f"{n} by the {b}" for b, n in sorted(lost.items())) + ")"
    text += ", left out of the score."
    if skipped:
        text += f" Run folders that could not be used: {len(skipped)}."
    return text


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def rollout_scaling(found: Mapping[tuple[str, int], Cell], caption: str) -> Table:
    """Success by method and budget, each with its interval over tasks and seeds."""
    budgets = sorted({budget for _, budget in found})
    methods = list(dict.fromkeys(method for method, _ in found))
    rows = []
    for method in methods:
        row = [method]
        for budget in budgets:
            cell = found.get((method, budget))
            row.append(_cell(cell) if cell else "not run")
        rows.append(tuple(row))
    text = f"Success by rollout budget with 95 % intervals over tasks and seeds. {caption}"
    header = ("method", *(f"{budget}" for budget in budgets))
    return Table("rollout_scaling", text, header, tuple(rows))


def _cell(cell: Cell) -> str:
    interval = cell.interval()
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def comparison(found: Mapping[tuple[str, int], Cell], budget: int, caption: str) -> Table:
    """Every method at one budget against the base agent and against TRACE, paired by task, with
    p-values corrected (Holm) for all comparisons of the table."""
    at = {method: cell for (method, b), cell in found.items() if b == budget}
    against_base = _against(at, "base")
    against_trace = _against(at, "trace")
    raw = {f"{m}/base": d.p for m, d in against_base.items()}
    raw |= {f"{m}/trace": d.p for m, d in against_trace.items() if f"trace/{m}" not in raw}
    corrected = holm(raw)
    rows = []
    for method, cell in at.items():
        records = cell.records
        spent = sum(r.spent for r in records) / len(records)
        rows.append(
            (
                method,
                f"{len(records)}",
                f"{spent:.0f}",
                _cell(cell),
                f"{sum(r.similarity for r in records) / len(records):.3f}",
                *_difference(against_base.get(method), corrected.get(f"{method}/base")),
                *_difference(against_trace.get(method), corrected.get(f"{method}/trace")),
            )
        )
    spread = (
        max((_spread(cell, at["base"]) for m, cell in at.items() if m != "base"), default=0.0)
        if "base" in at
        else 0.0
    )
    n = next(iter(at.values())).matrix.shape[1]
    text = (
        f"All methods at {budget} rollouts. {caption} Differences are paired by task; p by sign "
        f"flips, Holm-corrected over {len(corrected)} comparisons. A true difference of "
        f"{detectable(spread, n):.3f} would be found with a power of 80 %."
    )
    header = (
        "method", "runs", "rollouts", "success", "similarity", "vs base", "p", "vs trace", "p",
    )  # fmt: skip
    return Table(f"comparison_{budget}", text, header, tuple(rows))


def _against(at: Mapping[str, Cell], control: str) -> dict[str, Difference]:
    if control not in at:
        return {}
    return {m: difference(cell, at[control]) for m, cell in at.items() if m != control}


def _spread(cell: Cell, control: Cell) -> float:
    return float(np.nanstd(cell.per_task - control.per_task))


def _difference(found: Difference | None, p: float | None) -> tuple[str, str]:
    if found is None or p is None:
        return "", ""
    d = found.interval
    text = f"{d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]"
    return text, "<0.0001" if p < 0.0001 else f"{p:.4f}"


def routing(records: Sequence[Record], caption: str) -> Table | None:
    """Where TRACE's success goes: the router's choice, the oracle route, the best adapter alone."""
    routed = [r for r in records if r.routing is not None]
    if not routed:
        return None
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in routed:
        groups.setdefault((record.method, record.budget), []).append(record)
    rows = []
    for (method, budget), members in sorted(groups.items()):
        figures = [r.routing for r in members if r.routing is not None]

        def mean(values: Sequence[float]) -> str:
            return f"{sum(values) / len(values):.3f}" if values else ""

        decisive = [f["agreement_decisive"] for f in figures if f["agreement_decisive"] is not None]
        rows.append(
            (
                method,
                f"{budget}",
                mean([float(len(r.adapters)) for r in members]),
                mean([r.mean for r in members]),
                mean([f["oracle_score"]["success"] for f in figures]),
                mean([f["single_score"]["success"] for f in figures]),
                mean([f["agreement"] for f in figures]),
                mean(decisive),
            )
        )
    text = (
        "Routing: success of the routed agent, of the best choice for each task (an upper bound "
        "that looks at the scores) and of the best single adapter; how often the router's choice "
        f"is as good as the best, on all tasks and where it matters. Means over seeds. {caption}"
    )
    header = (
        "method", "budget", "adapters", "routed", "oracle", "single", "agreement", "decisive",
    )  # fmt: skip
    return Table("routing", text, header, tuple(rows))


def selection(records: Sequence[Record], caption: str) -> Table | None:
    """How often each capability was selected over the runs of a budget."""
    chosen = [r for r in records if r.method == "trace"]
    if not chosen:
        return None
    budgets = sorted({r.budget for r in chosen})
    names = sorted({name for r in chosen for name in r.capabilities})
    rows = []
    for name in names:
        row = [name]
        for budget in budgets:
            runs = [r for r in chosen if r.budget == budget]
            row.append(f"{sum(name in r.capabilities for r in runs)} of {len(runs)}")
        rows.append(tuple(row))
    text = f"Runs of TRACE in which a capability was selected, by budget. {caption}"
    return Table("selection", text, ("capability", *map(str, budgets)), tuple(rows))


def cost(found: Mapping[tuple[str, int], Cell], caption: str) -> Table:
    """Rollouts by purpose, tokens and wall time of the method itself, means over seeds."""
    rows = []
    purposes = ("analysis", "calibration", "training", "prompt", "validation")
    for (method, budget), cell in found.items():
        n = len(cell.records)
        spent = [sum(r.rollouts.get(p, 0) for r in cell.records) / n for p in purposes]
        unspent = budget - sum(r.spent for r in cell.records) / n
        tokens = sum(r.tokens for r in cell.records) / n
        wall = sum(r.wall_s.get("method", 0.0) for r in cell.records) / n
        rows.append(
            (method, f"{budget}", *(f"{s:.0f}" for s in spent), f"{unspent:.0f}",
             f"{tokens / 1000:.0f}", f"{wall:.1f}")
        )  # fmt: skip
    text = f"Cost: rollouts by purpose, thousands of tokens, seconds in the method. {caption}"
    header = ("method", "budget", *purposes, "unspent", "kilotokens", "seconds")
    return Table("cost", text, header, tuple(rows))


def by_training_tasks(records: Sequence[Record], caption: str) -> Table:
    """Success by number of training tasks and budget, one row a method and number."""
    from trace_bench.results.compare import cells

    sizes = sorted({int(r.settings["env.train_tasks"] or 0) for r in records})
    budgets = sorted({r.budget for r in records})
    rows = []
    for size in sizes:
        some = cells([r for r in records if int(r.settings["env.train_tasks"] or 0) == size])
        for method in dict.fromkeys(m for m, _ in some):
            row = [f"{size}", method]
            row += [_cell(some[method, b]) if (method, b) in some else "not run" for b in budgets]
            rows.append(tuple(row))
    text = (
        "Success by number of training tasks and rollout budget, with 95 % intervals over tasks "
        f"and seeds. {caption}"
    )
    return Table("training_tasks", text, ("tasks", "method", *map(str, budgets)), tuple(rows))
