"""What training brings and costs over the size of the base model: a table and a figure.

    PYTHONPATH=.. python sizes.py PLACE|FILTER... --out FOLDER

Runs of several models differ in more than the model, so they stand in no other table together. They
must agree in `SAME` and the budget; in what else they differ, the caption says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common import one_budget, script

from trace_bench.core.errors import UserError
from trace_bench.results import figures
from trace_bench.results.captions import began_alike, by_total, describe, readable
from trace_bench.results.cells import Cell, cells, difference
from trace_bench.results.groups import check_same_settings, groups_of
from trace_bench.results.places import Selection
from trace_bench.results.run import Run
from trace_bench.results.table import Table, gap, style, write

BySize = Mapping[int, Mapping[str, Cell]]
"""The cells by the number of the model's parameters and by method, both in rising order."""
PAGE = "about_sizes"
SAME = ("held-out tasks", "rule", "protocol", "accounting", "env.name", "env.suite",
        "evaluation.split", "evaluation.trials", "env.train_split", "env.train_tasks")  # fmt: skip


def make(selection: Selection, out: Path, _keys: Sequence[str]) -> list[Path]:
    """Raises UserError for runs that do not say how large their model is, or are measured by other
    things."""
    every = selection.runs
    if unsized := [r.fingerprint for r in every if r.parameters is None]:
        raise UserError(
            f"runs {', '.join(unsized[:4])} do not say how many parameters their model has (they "
            "are older or scripted, or its weights are no folder on this machine). Leave them out."
        )
    if len({r.parameters for r in every}) < 2:
        raise UserError("`sizes` needs runs of at least two models. Name more runs.")
    names = {key for r in every for key in r.flat}
    check_same_settings(every, sorted(names - set(SAME)))
    one_budget(every)
    runs = by_size(every)
    sizes = {s: {m: cell for (m, _), cell in cells(some).items()} for s, some in runs.items()}
    about = [f"{_millions(s)}: {describe(r)}" for s, r in runs.items()]
    written = write([_table(sizes)], out, PAGE, [*_varying(runs), *about])
    said = dict.fromkeys(map(readable, runs.values()))  # several where the models differ in that
    return written + draw(sizes, "; ".join(said), out / "sizes")


def _table(sizes: BySize) -> Table:
    text = (
        "What a method brings over the agent that it began with, by the size of the base model, "
        "paired by task; wall time of the method and thousands of tokens in its rollouts, means "
        f"over seeds. Intervals of 95 %. All about these runs: {PAGE}.md."
    )
    rows = [row for size, by_method in sizes.items() for row in _rows(size, by_method)]
    header = ("parameters", "method", "runs", "base", "success", "gain", "minutes", "kilotokens")
    return Table("sizes", text, header, tuple(rows))


def by_size(runs: Sequence[Run]) -> dict[int, tuple[Run, ...]]:
    """The runs of each model by its parameters, named as in a table of its own; budgets hold what
    was spent before. Raises UserError for runs of one size that cannot stand together."""
    groups = {}
    for size in sorted({r.parameters for r in runs if r.parameters is not None}):
        some = [r for r in runs if r.parameters == size]
        check_same_settings(some)
        if not began_alike(some):
            raise UserError(
                f"the runs with {size:,} parameters began with different agents, and `sizes` shows "
                "one beginning a model. Name the runs of one, or filter by method=."
            )
        (group,) = groups_of(by_total(some))
        groups[size] = group.runs
    return groups


def draw(sizes: BySize, about: str, path: Path) -> list[Path]:
    figure, ((left, right),) = figures.panels(1, 2, (8.2, 3.6))
    methods = list(dict.fromkeys(m for by_method in sizes.values() for m in by_method))
    looks = style().looks([style().control, *methods])
    bases = [(float(size), next(iter(some.values())).base) for size, some in sizes.items()]
    figures.line(left, looks[style().control], [(x, cell.interval()) for x, cell in bases])
    for method in methods:
        points = [(float(size), some[method]) for size, some in sizes.items() if method in some]
        look = looks[method]
        figures.line(left, look, [(x, cell.interval()) for x, cell in points])
        right.plot([x for x, _ in points], [minutes(c) for _, c in points], color=look.colour,
                   marker=look.marker, markersize=6, linewidth=1.4)  # fmt: skip
    one = next(iter(next(iter(sizes.values())).values()))
    figures.bounds(left, one.runs[0].floors)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(list(sizes), [_millions(s) for s in sizes])
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


def _varying(runs: Mapping[int, Sequence[Run]]) -> list[str]:
    """In which settings the runs of one model differ from those of another."""
    first = [some[0].settings for some in runs.values()]
    keys = sorted({key for s in first for key in s} - {"model.sha256", "model.path"})
    values = {key: [str(s.get(key)) for s in first] for key in keys}
    differ = "; ".join(f"{k} {', '.join(v)}" for k, v in values.items() if len(set(v)) > 1)
    return [f"From the smallest to the largest model also differ: {differ}."] if differ else []


def _rows(size: int, by_method: Mapping[str, Cell]) -> Iterator[tuple[str, ...]]:
    for method, cell in by_method.items():
        base, success = cell.base, cell.text
        gain = gap(difference(cell, base).interval)
        tokens = cell.mean(lambda r: r.tokens) / 1000
        yield (f"{size:,}", method, f"{len(cell.runs)}", f"{base.value:.3f}", success, gain,
               f"{minutes(cell):.1f}", f"{tokens:.0f}")  # fmt: skip


def _millions(size: int) -> str:
    return f"{size / 1e6:.1f}M" if size < 1e7 else f"{size / 1e6:.0f}M"


if __name__ == "__main__":
    script(make, __doc__)
