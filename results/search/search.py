"""A search over settings: what was tried on the development split, the best first.

    PYTHONPATH=.. python search.py PLACE|FILTER... [--across SETTING,...] --out FOLDER

`--across`: settings among the methods' own, each of whose values was searched for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from common import script

from trace_bench.core.errors import UserError
from trace_bench.core.types import grouped
from trace_bench.results.captions import by_total, describe, head
from trace_bench.results.cells import Cell, difference
from trace_bench.results.groups import across, check_same_settings
from trace_bench.results.places import Selection
from trace_bench.results.run import Run
from trace_bench.results.table import Table, style, write

PAGE = "about_search"


def make(selection: Selection, out: Path, keys: Sequence[str]) -> list[Path]:
    """Raises UserError for runs that looked at held-out tasks or cannot be compared."""
    runs = []
    for r in by_total(across(selection.runs, keys)):
        dev = r.settings.get("env.dev_split", "dev")  # a suite may have another name for it
        if (split := r.settings.get("evaluation.split")) not in ("dev", dev):
            raise UserError(
                f"run {r.fingerprint} was evaluated on the split {split}: settings are chosen "
                f"on the development split only. Run the search with evaluation.split={dev}."
            )
        values = [str(r.method_settings[key]) for key in keys if key in r.method_settings]
        runs.append(r.named(", ".join([r.label, *values])))
    differing = {key for some in _methods(runs) for key in varied(some)}
    check_same_settings(runs, sorted(differing))
    table = _table(runs, head(runs, PAGE))
    return write([table], out, PAGE, [describe(runs, selection.skipped)])


def varied(runs: Sequence[Run]) -> tuple[str, ...]:
    """The settings, as in `Run.flat`, in which the runs of one method differ."""
    items = [item for run in runs for item in run.flat.items()]
    values = grouped(items, lambda item: item[0])
    return tuple(
        sorted(key for key, pairs in values.items() if len({str(v) for _, v in pairs}) > 1)
    )


def _table(runs: Sequence[Run], caption: str) -> Table:
    """A row for each method, budget and choice, the best of a method and budget first."""
    rows: list[tuple[str, ...]] = []
    for some in _methods(runs):
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


def _ranked(runs: Sequence[Run], keys: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The rows of one method and budget."""
    tried = grouped(runs, lambda r: tuple(str(r.flat.get(k)) for k in keys))
    method, budget = runs[0].label, runs[0].budget
    cells_by = {values: Cell(method, budget, tuple(some)) for values, some in tried.items()}
    order = sorted(cells_by, key=lambda values: (-round(cells_by[values].value, 9), values))
    for values in order:
        cell, best = cells_by[values], cells_by[order[0]]
        named = [f"{k.rpartition('.')[2]} {v}" for k, v in zip(keys, values, strict=True)]
        gap = difference(best, cell).interval
        behind = "best" if cell is best else f"{gap.value:.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        choice = ", ".join(named) or "one choice only"
        yield method, f"{budget}", choice, f"{len(cell.runs)}", f"{cell.value:.3f}", behind


def _methods(runs: Sequence[Run]) -> list[list[Run]]:
    by_method = grouped(runs, lambda r: r.label)
    return [by_method[name] for name in sorted(by_method, key=style().place)]


if __name__ == "__main__":
    script(make, __doc__, "--across")
