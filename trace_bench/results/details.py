"""Detail tables: routing, selection, reliability, checklists, cost, and a search over settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import PER_ITEM
from trace_bench.results.compare import Cell, check_comparable, difference
from trace_bench.results.records import Record, flat_settings
from trace_bench.results.statistics import mean, pass_hat
from trace_bench.results.style import style
from trace_bench.results.table import Table, estimate

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
        groups.setdefault((record.label, record.budget), []).append(record)
    rows = []
    for (method, budget), members in sorted(groups.items()):
        figures = [r.routing for r in members if r.routing is not None]

        def shown(found: Sequence[float | None]) -> str:
            values = [v for v in found if v is not None]  # None: every episode was lost
            return f"{mean(values):.3f}" if values else ""

        rows.append(
            (
                method,
                f"{budget}",
                shown([float(len(r.adapters)) for r in members]),
                shown([r.mean for r in members]),
                shown([f["oracle_score"]["success"] for f in figures]),
                shown([f["single_score"]["success"] for f in figures]),
                shown([f["agreement"] for f in figures]),
                shown([f["agreement_decisive"] for f in figures]),
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
    chosen = [r for r in records if r.label == style().focus]
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
    return f" ({mean(shares):.2f})" if shares else ""


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
                trials = (
                    [(c, n if convention == "scored" else planned) for c, n in r.passes]
                    for r in cell.records
                )
                values = [v for some in trials if (v := pass_hat(some, k)) is not None]
                row.append(f"{mean(values):.3f}" if values else "")
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
        shown = [estimate(_only(cell, where).interval()) for where in places.values()]
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


def checklists(found: Mapping[tuple[str, int], Cell], caption: str) -> Table | None:
    """What models in roles cost for each checklist item, means over seeds; None if no model was
    asked for one."""
    rows = []
    for (method, budget), cell in found.items():
        for role in sorted({role for r in cell.records for role in r.per_item}):
            asked = [r.per_item[role] for r in cell.records if role in r.per_item]
            means = [mean([cost[name] for cost in asked]) for name in PER_ITEM]
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


# -- a search over settings ------------------------------------------------------------------------


def check_search(records: Sequence[Record]) -> None:
    """Raises UserError for runs that looked at held-out tasks, or that do not differ in settings of
    one method each."""
    for record in records:
        if (split := record.settings.get("evaluation.split")) != "dev":
            raise UserError(
                f"run {record.fingerprint} was evaluated on the split {split}: settings are chosen "
                "on the development split only. Run the search with evaluation.split=dev."
            )
    differing = {key for some in _methods(records).values() for key in varied(some)}
    check_comparable(records, free=sorted(differing))


def varied(records: Sequence[Record]) -> tuple[str, ...]:
    """The settings in which the runs of one method differ, but for budget and seed; the method's
    own begin with `method.`."""
    values: dict[str, set[str]] = {}
    for record in records:
        for key, value in flat_settings(record).items():
            values.setdefault(key, set()).add(str(value))
    return tuple(sorted(key for key, seen in values.items() if len(seen) > 1))


def search(records: Sequence[Record], caption: str) -> Table:
    """A row for each method, budget and choice, the best of a method and budget first."""
    rows = []
    for method, some in _methods(records).items():
        keys = varied(some)
        for budget in sorted({r.budget for r in some}):
            groups: dict[tuple[str, ...], list[Record]] = {}
            for record in (r for r in some if r.budget == budget):
                given = flat_settings(record)
                groups.setdefault(tuple(str(given.get(k)) for k in keys), []).append(record)
            rows += _ranked(method, budget, keys, groups)
    text = (
        "Settings by success, means over tasks and seeds; behind: the best of the same method "
        "and budget less this one, on the same tasks, with a 95 % interval over tasks and seeds. "
        "The best of several is flattered by having been picked: what it scores on held-out tasks "
        f"is lower on average. {caption}"
    )
    return Table("search", text, ("method", "budget", "settings", "seeds", "success", "behind"),
                 tuple(rows))  # fmt: skip


def _ranked(
    method: str, budget: int, keys: Sequence[str], groups: dict[tuple[str, ...], list[Record]]
) -> list[tuple[str, ...]]:
    found = {
        values: Cell(method, budget, tuple(sorted(some, key=lambda r: r.seed)))
        for values, some in groups.items()
    }
    order = sorted(found, key=lambda values: (-found[values].value, values))
    best = found[order[0]]
    rows: list[tuple[str, ...]] = []
    for values in order:
        cell = found[values]
        named = [f"{k.rpartition('.')[2]} {v}" for k, v in zip(keys, values, strict=True)]
        gap = difference(best, cell).interval
        behind = (
            f"{gap.value:.3f} [{gap.low:+.3f}, {gap.high:+.3f}]" if cell is not best else "best"
        )
        rows.append(
            (method, f"{budget}", ", ".join(named) or "one choice only", f"{len(cell.records)}",
             f"{cell.value:.3f}", behind)
        )  # fmt: skip
    return rows


def _methods(records: Sequence[Record]) -> dict[str, list[Record]]:
    names = sorted({r.label for r in records}, key=style().place)
    return {name: [r for r in records if r.label == name] for name in names}
