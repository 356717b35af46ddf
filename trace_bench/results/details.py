"""Detail tables: routing, selection, reliability, checklists, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trace_bench.core.run_files import PER_ITEM
from trace_bench.results.compare import Cell
from trace_bench.results.records import Record
from trace_bench.results.statistics import pass_hat
from trace_bench.results.style import style
from trace_bench.results.table import Table

CONVENTIONS = {
    "scored": "trials without a score are left out, and with them tasks that have fewer than k "
    "(what tau2-bench's metrics compute)",
    "planned": "trials without a score count as failures (what its leaderboard reports)",
}
"""The two documented conventions for pass^k. They agree where nothing was lost."""


def routing(records: Sequence[Record], caption: str) -> Table | None:
    """TRACE's success with the router's choice, the oracle's choice and the best single adapter."""
    routed = [r for r in records if r.routing is not None]
    if not routed:
        return None
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in routed:
        groups.setdefault((record.method, record.budget), []).append(record)
    rows = []
    for (method, budget), members in sorted(groups.items()):
        figures = [r.routing for r in members if r.routing is not None]

        def mean(found: Sequence[float | None]) -> str:
            values = [v for v in found if v is not None]  # None: every episode was lost
            return f"{sum(values) / len(values):.3f}" if values else ""

        decisive = [f["agreement_decisive"] for f in figures]
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
        "Routing: success of the routed agent, of the best choice for each task (which looks at "
        "the scores and takes one adapter, so it bounds no route that adds adapters up) and of the "
        "best single adapter; how often the router's choice is as good as the best, on all tasks "
        f"and where it matters. Means over seeds. {caption}"
    )
    header = (
        "method", "budget", "adapters", "routed", "oracle", "single", "agreement", "decisive",
    )  # fmt: skip
    return Table("routing", text, header, tuple(rows))


def selection(records: Sequence[Record], caption: str) -> Table | None:
    """How often each capability was selected over the runs of a budget, and how well the labelling
    runs of a run agreed about it."""
    chosen = [r for r in records if r.method == style().focus]
    if not chosen:
        return None
    budgets = sorted({r.budget for r in chosen})
    names = sorted({name for r in chosen for name in (*r.capabilities, *r.votes)})
    rows = []
    for name in names:
        row = [name]
        for budget in budgets:
            runs = [r for r in chosen if r.budget == budget]
            count = sum(name in r.capabilities for r in runs)
            row.append(f"{count} of {len(runs)}{_agree(name, runs)}")
        rows.append(tuple(row))
    text = (
        "Runs of TRACE in which a capability was selected, by budget; in brackets the share of a "
        "run's labelling runs that found it lacking by the thresholds, mean over all runs. "
        f"{caption}"
    )
    return Table("selection", text, ("capability", *map(str, budgets)), tuple(rows))


def _agree(name: str, runs: Sequence[Record]) -> str:
    shares = [r.votes[name][0] / r.votes[name][1] for r in runs if r.votes.get(name, (0, 0))[1]]
    return f" ({sum(shares) / len(shares):.2f})" if shares else ""


def reliability(found: Mapping[tuple[str, int], Cell], caption: str) -> Table | None:
    """pass^k of every method and budget by both conventions, mean over seeds, where tasks were
    tried several times."""
    tried = {key: cell for key, cell in found.items() if cell.records[0].passes}
    if not tried:
        return None
    planned = max(int(c.records[0].settings.get("evaluation.trials", 1)) for c in tried.values())
    rows = []
    for (method, budget), cell in tried.items():
        lost = sum(planned - n for r in cell.records for _, n in r.passes)
        total = sum(planned * len(r.passes) for r in cell.records)
        for convention in CONVENTIONS:
            row = [method, f"{budget}", convention]
            for k in range(1, planned + 1):
                passes = [_trials(r, convention, planned) for r in cell.records]
                values = [v for some in passes if (v := pass_hat(some, k)) is not None]
                row.append(f"{sum(values) / len(values):.3f}" if values else "")
            rows.append((*row, f"{lost} of {total}"))
    conventions = "; ".join(f"`{name}`: {what}" for name, what in CONVENTIONS.items())
    text = (
        "pass^k: the probability that k trials of a task all succeed, C(c, k) / C(n, k) for c "
        f"successes in n trials, mean over tasks. Two conventions for n are in use. {conventions}. "
        f"{caption}"
    )
    header = ("method", "budget", "trials", *(f"k={k}" for k in range(1, planned + 1)), "lost")
    return Table("reliability", text, header, tuple(rows))


def by_needs(found: Mapping[tuple[str, int], Cell], caption: str) -> Table | None:
    """Success on the tasks that need none, one, or several capabilities, where their suite says
    what they need."""
    known = [r.needs for cell in found.values() for r in cell.records if r.needs]
    if not known:
        return None
    kinds = {"none": {0}, "one": {1}, "several": set(range(2, max(known[0]) + 1))}
    places = {
        name: [i for i, count in enumerate(known[0]) if count in counts]
        for name, counts in kinds.items()
    }
    places = {name: own for name, own in places.items() if own}
    rows = []
    for (method, budget), cell in found.items():
        own = [_only(cell, where).interval() for where in places.values()]
        shown = [f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for i in own]
        rows.append((method, f"{budget}", *shown))
    text = (
        "Success by how many capabilities a task needs, by its suite's own word, with 95 % "
        f"intervals over tasks and seeds. {caption}"
    )
    header = ("method", "budget", *(f"{n} ({len(own)} tasks)" for n, own in places.items()))
    return Table("needs", text, header, tuple(rows))


def _only(cell: Cell, places: Sequence[int]) -> Cell:
    """The cell of some of its tasks."""
    some = (replace(r, success=tuple(r.success[i] for i in places)) for r in cell.records)
    return replace(cell, records=tuple(some))


def _trials(record: Record, convention: str, planned: int) -> list[tuple[int, int]]:
    """Successes and trials per task."""
    return [(c, n if convention == "scored" else planned) for c, n in record.passes]


def checklists(found: Mapping[tuple[str, int], Cell], caption: str) -> Table | None:
    """What models in roles cost for each checklist item, means over seeds; None if no model was
    asked for one."""
    rows = []
    for (method, budget), cell in found.items():
        for role in sorted({role for r in cell.records for role in r.per_item}):
            asked = [r.per_item[role] for r in cell.records if role in r.per_item]
            means = [sum(cost[name] for cost in asked) / len(asked) for name in PER_ITEM]
            shown = (f"{means[0]:.2f}", *(f"{tokens:.0f}" for tokens in means[1:]))
            rows.append((method, f"{budget}", role, *shown))
    text = (
        "Models in roles for checklists: requests and tokens for each item in the scores of a "
        f"run's episodes, those of lost episodes included; means over seeds. {caption}"
    )
    header = ("method", "budget", "role", *(name.replace("_", " ") for name in PER_ITEM))
    return Table("checklists", text, header, tuple(rows)) if rows else None


def cost(found: Mapping[tuple[str, int], Cell], caption: str) -> Table:
    """Rollouts by purpose, tokens and wall time of the method's phases, means over seeds."""
    rows = []
    purposes = ("analysis", "calibration", "training", "prompt", "validation")
    for (method, budget), cell in found.items():
        records = cell.records

        def mean(values: Sequence[float]) -> float:
            return sum(values) / len(values)

        phases = {p: mean([_seconds(r, p) for r in records]) for p in purposes}
        whole = mean([r.wall_s.get("method", 0.0) for r in records])
        rows.append(
            (
                method,
                f"{budget}",
                *(f"{mean([r.rollouts.get(p, 0) for r in records]):.0f}" for p in purposes),
                f"{budget - mean([r.total for r in records]):.0f}",
                f"{mean([r.tokens for r in records]) / 1000:.0f}",
                f"{sum(phases.values()):.1f}",
                f"{whole - sum(phases.values()):.1f}",
            )
        )
    text = (
        "Cost: rollouts by purpose, thousands of tokens in them, seconds of playing them and of "
        f"everything else in the method (updates, labels, checkpoints), means over seeds. {caption}"
    )
    header = ("method", "budget", *purposes, "unspent", "kilotokens", "s playing", "s other")
    return Table("cost", text, header, tuple(rows))


def _seconds(record: Record, purpose: str) -> float:
    return float(record.wall_s.get(f"method/{purpose} rollouts", 0.0))
