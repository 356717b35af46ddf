"""Detail tables: routing, selection, reliability, checklists, cost, and a search over settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import PER_ITEM
from trace_bench.core.types import grouped
from trace_bench.results.captions import describe, head
from trace_bench.results.compare import (
    Cell,
    Cells,
    by_cell,
    cells,
    check_comparable,
    difference,
    scored,
)
from trace_bench.results.places import Found
from trace_bench.results.records import Record, flat_settings
from trace_bench.results.statistics import mean, pass_hat
from trace_bench.results.table import Table, estimate, style, write

CONVENTIONS = {
    "scored": "trials without a score are left out, and with them tasks that have fewer than k "
    "(what tau2-bench's metrics compute)",
    "planned": "trials without a score count as failures (what its leaderboard reports)",
}
"""The two documented conventions for pass^k. They agree where nothing was lost."""
PURPOSES = ("analysis", "calibration", "training", "prompt", "validation")


def routing(records: Sequence[Record], caption: str) -> Table:
    """TRACE's success with the router's choice, the oracle's choice and the best single adapter."""

    def row(cell: Cell) -> Iterator[list[str]]:
        figures = [r.routing for r in cell.records if r.routing is not None]
        columns: list[list[float | None]] = [
            [len(r.adapters) for r in cell.records],
            [r.mean for r in cell.records],
            [f["oracle_score"]["success"] for f in figures],
            [f["single_score"]["success"] for f in figures],
            [f["agreement"] for f in figures],
            [f["agreement_decisive"] for f in figures],
        ]  # None: every episode was lost
        known = [[v for v in column if v is not None] for column in columns]
        yield [f"{mean(values):.3f}" if values else "" for values in known]

    text = (
        "Routing: success of the routed agent, of the best choice for each task (which looks at "
        "the scores and takes one adapter, so it bounds no route that adds adapters up) and of the "
        "best single adapter; how often the router's choice is as good as the best, on all tasks "
        f"and where it matters. Means over seeds. {caption}"
    )
    header = ("adapters", "routed", "oracle", "single", "agreement", "decisive")
    routed = cells([r for r in records if r.routing is not None])
    return by_cell("routing", text, header, dict(sorted(routed.items())), row)


def selection(records: Sequence[Record], caption: str) -> Table:
    """How often runs of a budget selected a capability, and how well labelling runs agreed."""
    focus = sorted((r for r in records if r.label == style().focus), key=lambda r: r.budget)
    at = grouped(focus, lambda r: r.budget)
    names = sorted({n for runs in at.values() for r in runs for n in (*r.capabilities, *r.votes)})
    rows = [(name, *(_selected(name, runs) for runs in at.values())) for name in names]
    text = (
        "Runs of TRACE in which a capability was selected, by budget; in brackets the share of a "
        "run's labelling runs that found it lacking by the thresholds, mean over all runs. "
        f"{caption}"
    )
    return Table("selection", text, ("capability", *map(str, at)), tuple(rows))


def _selected(name: str, runs: Sequence[Record]) -> str:
    count = sum(name in r.capabilities for r in runs)
    shares = [r.votes[name][0] / r.votes[name][1] for r in runs if r.votes.get(name, (0, 0))[1]]
    return f"{count} of {len(runs)}" + (f" ({mean(shares):.2f})" if shares else "")


def reliability(found: Cells, caption: str) -> Table:
    """pass^k by both conventions, mean over seeds, where tasks were tried several times."""
    tried = {key: cell for key, cell in found.items() if cell.records[0].passes}
    planned = max((int(c.records[0].settings.get("evaluation.trials", 1)) for c in tried.values()),
                  default=0)  # fmt: skip

    def rows(cell: Cell) -> Iterator[list[str]]:
        passes = [p for r in cell.records for p in r.passes]
        lost = sum(planned - n for _, n in passes)
        for convention in CONVENTIONS:
            row = [convention]
            for k in range(1, planned + 1):
                trials = (
                    [(c, n if convention == "scored" else planned) for c, n in r.passes]
                    for r in cell.records
                )
                values = [v for some in trials if (v := pass_hat(some, k)) is not None]
                row.append(f"{mean(values):.3f}" if values else "")
            yield [*row, f"{lost} of {planned * len(passes)}"]

    conventions = "; ".join(f"`{name}`: {what}" for name, what in CONVENTIONS.items())
    text = (
        "pass^k: the probability that k trials of a task all succeed, C(c, k) / C(n, k) for c "
        f"successes in n trials, mean over tasks. Two conventions for n are in use. {conventions}. "
        f"{caption}"
    )
    header = ("trials", *(f"k={k}" for k in range(1, planned + 1)), "lost")
    return by_cell("reliability", text, header, tried, rows)


def by_needs(found: Cells, caption: str) -> Table:
    """Success on the tasks that need none, one, or several capabilities, by their suite's word."""
    known = next((r.needs for cell in found.values() for r in cell.records if r.needs), ())
    places = kinds_of(known)

    def row(cell: Cell) -> Iterator[list[str]]:
        if places:
            kinds = [cell.on(where) for where in places.values()]
            yield [estimate(one.interval()) if scored(one, one) else "" for one in kinds]

    text = (
        "Success by how many capabilities a task needs, by its suite's own word, with 95 % "
        f"intervals over tasks and seeds. {caption}"
    )
    header = [f"{n} ({len(own)} tasks)" for n, own in places.items()]
    return by_cell("needs", text, header, found, row)


def kinds_of(needs: Sequence[int]) -> dict[str, list[int]]:
    """The places of the tasks that need no, one or several capabilities; nothing of what is not
    there."""
    kinds = ("none", "one", "several")
    places = {name: [i for i, n in enumerate(needs) if kinds[min(n, 2)] == name] for name in kinds}
    return {name: own for name, own in places.items() if own}


def checklists(found: Cells, caption: str) -> Table:
    """What models in roles cost for each checklist item, means over seeds."""

    def rows(cell: Cell) -> Iterator[tuple[str, ...]]:
        for role in sorted({role for r in cell.records for role in r.per_item}):
            asked = [r.per_item[role] for r in cell.records if role in r.per_item]
            requests, *tokens = (mean([cost[name] for cost in asked]) for name in PER_ITEM)
            yield (role, f"{requests:.2f}", *(f"{count:.0f}" for count in tokens))

    text = (
        "Models in roles for checklists: requests and tokens for each item in the scores of a "
        f"run's episodes, those of lost episodes included; means over seeds. {caption}"
    )
    header = ("role", *(name.replace("_", " ") for name in PER_ITEM))
    return by_cell("checklists", text, header, found, rows)


def cost(found: Cells, caption: str) -> Table:
    """Rollouts by purpose, tokens and wall time of the method's phases, means over seeds."""

    def row(cell: Cell) -> Iterator[tuple[str, ...]]:
        phases = [f"method/{p} rollouts" for p in PURPOSES]
        playing = sum(mean([r.wall_s.get(p, 0.0) for r in cell.records]) for p in phases)
        yield (
            *(f"{mean([r.rollouts.get(p, 0) for r in cell.records]):.0f}" for p in PURPOSES),
            f"{cell.budget - cell.mean(lambda r: r.total):.0f}",
            f"{cell.mean(lambda r: r.tokens) / 1000:.0f}",
            f"{playing:.1f}",
            f"{cell.mean(lambda r: r.wall_s.get('method', 0.0)) - playing:.1f}",
        )

    text = (
        "Cost: rollouts by purpose, thousands of tokens in them, seconds of playing them and of "
        f"everything else in the method (updates, labels, checkpoints), means over seeds. {caption}"
    )
    header = (*PURPOSES, "unspent", "kilotokens", "s playing", "s other")
    return by_cell("cost", text, header, found, row)


# -- a search over settings ------------------------------------------------------------------------


def make_search(found: Found, out: Path, across: Sequence[str] = ()) -> list[Path]:
    """`across`: settings among the methods' own, each of whose values was searched for itself."""
    records = []
    for r in found.records:
        values = [str(r.method_settings[key]) for key in across if key in r.method_settings]
        records.append(r.named(", ".join([r.label, *values])))
    check_search(records)
    page = "about_search"
    made = search(records, head(records, page))
    return write([made], out, page, describe(records, found.skipped))


def check_search(records: Sequence[Record]) -> None:
    """Raises UserError for runs that looked at held-out tasks or cannot be compared."""
    for record in records:
        own = record.settings.get("env.dev_split", "dev")  # a suite may have another name for it
        if (split := record.settings.get("evaluation.split")) not in ("dev", own):
            raise UserError(
                f"run {record.fingerprint} was evaluated on the split {split}: settings are chosen "
                f"on the development split only. Run the search with evaluation.split={own}."
            )
    differing = {key for some in _methods(records) for key in varied(some)}
    check_comparable(records, free=sorted(differing))


def varied(records: Sequence[Record]) -> tuple[str, ...]:
    """The settings, as in `flat_settings`, in which the runs of one method differ."""
    given = [item for record in records for item in flat_settings(record).items()]
    values = grouped(given, lambda item: item[0])
    return tuple(sorted(key for key, own in values.items() if len({str(v) for _, v in own}) > 1))


def search(records: Sequence[Record], caption: str) -> Table:
    """A row for each method, budget and choice, the best of a method and budget first."""
    rows: list[tuple[str, ...]] = []
    for some in _methods(records):
        keys = varied(some)
        for budget in sorted({r.budget for r in some}):
            runs = sorted((r for r in some if r.budget == budget), key=lambda r: r.seed)
            rows += _ranked(runs, keys)
    text = (
        "Settings by success, means over tasks and seeds; behind: the best of the same method "
        "and budget less this one, on the same tasks, with a 95 % interval over tasks and seeds. "
        "The best of several is flattered by having been picked: what it scores on held-out tasks "
        f"is lower on average. {caption}"
    )
    header = ("method", "budget", "settings", "seeds", "success", "behind")
    return Table("search", text, header, tuple(rows))


def _ranked(runs: Sequence[Record], keys: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The rows of one method and budget."""
    tried = grouped(runs, lambda r: tuple(str(flat_settings(r).get(k)) for k in keys))
    method, budget = runs[0].label, runs[0].budget
    found = {own: Cell(method, budget, tuple(some)) for own, some in tried.items()}
    order = sorted(found, key=lambda values: (-round(found[values].value, 9), values))
    for values in order:
        cell, best = found[values], found[order[0]]
        named = [f"{k.rpartition('.')[2]} {v}" for k, v in zip(keys, values, strict=True)]
        gap = difference(best, cell).interval
        behind = "best" if cell is best else f"{gap.value:.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        shown = ", ".join(named) or "one choice only"
        yield method, f"{budget}", shown, f"{len(cell.records)}", f"{cell.value:.3f}", behind


def _methods(records: Sequence[Record]) -> list[list[Record]]:
    found = grouped(records, lambda r: r.label)
    return [found[name] for name in sorted(found, key=style().place)]
