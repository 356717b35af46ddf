"""What training brings and costs over the size of the base model: a table and a figure.

Runs of several models differ in more than the model, so they stand in no other table together. They
must agree in `SAME` and the budget; in what else they differ, the caption says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.results import figures
from trace_bench.results.captions import began_alike, by_total, describe, readable
from trace_bench.results.compare import Cell, cells, check_same_settings, difference
from trace_bench.results.groups import groups_of
from trace_bench.results.places import Found
from trace_bench.results.records import Record, flat_settings
from trace_bench.results.table import Table, estimate, gap, style, write

BySize = Mapping[int, Mapping[str, Cell]]
"""The cells by the number of the model's parameters and by method, both in rising order."""
PAGE = "about_sizes"
SAME = ("held-out tasks", "rule", "protocol", "accounting", "env.name", "env.suite",
        "evaluation.split", "evaluation.trials", "env.train_split", "env.train_tasks")  # fmt: skip


def make_sizes(found: Found, out: Path) -> list[Path]:
    made, sizes, shown, about = table(found)
    return write([made], out, PAGE, about) + draw(sizes, shown, out / "sizes")


def table(found: Found) -> tuple[Table, BySize, str, str]:
    """The table, its cells, and what was run in words for the figure and for the page. Raises
    UserError for runs that do not say how large their model is, or are measured by other things."""
    if unknown := [r.fingerprint for r in found.records if r.parameters is None]:
        raise UserError(
            f"runs {', '.join(unknown[:4])} do not say how many parameters their model has (they "
            "are older or scripted, or its weights are no folder on this machine). Leave them out."
        )
    if len({r.parameters for r in found.records}) < 2:
        raise UserError("`sizes` needs runs of at least two models. Name more runs.")
    every = {key for r in found.records for key in flat_settings(r)}
    check_same_settings(found.records, sorted(every - set(SAME)))
    if len(budgets := sorted({r.budget for r in found.records})) > 1:
        named = ", ".join(map(str, budgets))
        raise UserError(f"`sizes` shows one budget, and these runs have {named}. Name budget=.")
    records = by_size(found.records)
    sizes = {s: {m: cell for (m, _), cell in cells(some).items()} for s, some in records.items()}
    text = (
        "What a method brings over the agent that it began with, by the size of the base model, "
        "paired by task; wall time of the method and thousands of tokens in its rollouts, means "
        f"over seeds. Intervals of 95 %. All about these runs: {PAGE}.md."
    )
    about = [f"{_shown(s)}: {describe(r)}" for s, r in records.items()]
    rows = [row for size, found_cells in sizes.items() for row in _rows(size, found_cells)]
    header = ("parameters", "method", "runs", "base", "success", "gain", "minutes", "kilotokens")
    said = dict.fromkeys(map(readable, records.values()))  # several where the models differ in that
    page = "\n\n".join([*_varying(records), *about])
    return Table("sizes", text, header, tuple(rows)), sizes, "; ".join(said), page


def by_size(records: Sequence[Record]) -> dict[int, tuple[Record, ...]]:
    """The runs of each model by its parameters, named as in a table of its own; budgets hold what
    was spent before. Raises UserError for runs of one size that cannot stand together."""
    found = {}
    for size in sorted({r.parameters for r in records if r.parameters is not None}):
        own = [r for r in records if r.parameters == size]
        check_same_settings(own)
        if not began_alike(own):
            raise UserError(
                f"the runs with {size:,} parameters began with different agents, and `sizes` shows "
                "one beginning a model. Name the runs of one, or filter by method=."
            )
        (group,) = groups_of(by_total(own))
        found[size] = group.records
    return found


def draw(sizes: BySize, about: str, path: Path) -> list[Path]:
    figure, ((left, right),) = figures.panels(1, 2, (8.2, 3.6))
    methods = list(dict.fromkeys(m for found in sizes.values() for m in found))
    looks = style().looks([style().control, *methods])
    bases = [(float(size), next(iter(found.values())).base) for size, found in sizes.items()]
    figures.line(left, looks[style().control], [(x, cell.interval()) for x, cell in bases])
    for method in methods:
        own = [(float(size), found[method]) for size, found in sizes.items() if method in found]
        look = looks[method]
        figures.line(left, look, [(x, cell.interval()) for x, cell in own])
        right.plot([x for x, _ in own], [minutes(c) for _, c in own], color=look.colour,
                   marker=look.marker, markersize=6, linewidth=1.4)  # fmt: skip
    one = next(iter(next(iter(sizes.values())).values()))
    figures.bounds(left, one.records[0].floors)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(list(sizes), [_shown(s) for s in sizes])
        axes.minorticks_off()
        axes.set_xlabel("parameters of the base model")
    left.set_ylabel(figures.SUCCESS)
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    right.set_ylabel("minutes of the method")
    right.legend(*left.get_legend_handles_labels(), **figures.BESIDE)
    caption = f"{about}; {figures.INTERVALS}. Minutes are wall time, means over seeds."
    return figures.finish(figure, "Success and cost by the size of the model", caption, path)


def minutes(cell: Cell) -> float:
    return cell.mean(lambda r: r.wall_s.get("method", 0.0)) / 60


def _varying(records: Mapping[int, Sequence[Record]]) -> list[str]:
    """In which settings the runs of one model differ from those of another."""
    first = [some[0].settings for some in records.values()]
    keys = sorted({key for s in first for key in s} - {"model.sha256", "model.path"})
    values = {key: [str(s.get(key)) for s in first] for key in keys}
    shown = "; ".join(f"{k} {', '.join(v)}" for k, v in values.items() if len(set(v)) > 1)
    return [f"From the smallest to the largest model also differ: {shown}."] if shown else []


def _rows(size: int, found: Mapping[str, Cell]) -> Iterator[tuple[str, ...]]:
    for method, cell in found.items():
        base, own = cell.base, estimate(cell.interval())
        gain = gap(difference(cell, base).interval)
        tokens = cell.mean(lambda r: r.tokens) / 1000
        yield (f"{size:,}", method, f"{len(cell.records)}", f"{base.value:.3f}", own, gain,
               f"{minutes(cell):.1f}", f"{tokens:.0f}")  # fmt: skip


def _shown(size: int) -> str:
    return f"{size / 1e6:.1f}M" if size < 1e7 else f"{size / 1e6:.0f}M"
