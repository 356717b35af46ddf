"""A search over settings: the score of each choice on the development split."""

from __future__ import annotations

from collections.abc import Sequence

from trace_bench.core.errors import UserError
from trace_bench.results.compare import Cell, check_comparable, difference
from trace_bench.results.records import Record, flat_settings
from trace_bench.results.style import style
from trace_bench.results.table import Table

SPLIT = "evaluation.split"


def check(records: Sequence[Record]) -> None:
    """Raises UserError for runs that looked at held-out tasks, or that do not differ in settings of
    one method each."""
    for record in records:
        if (split := record.settings.get(SPLIT)) != "dev":
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


def table(records: Sequence[Record], caption: str) -> Table:
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
    names = sorted({r.method for r in records}, key=style().place)
    return {name: [r for r in records if r.method == name] for name in names}
