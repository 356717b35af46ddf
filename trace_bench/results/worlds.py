"""What methods bring over the agent that they began with, world by world: a table and a figure.

Runs of several worlds, or of one at several temperatures, stand in no other table together. Here
each is a column, and a gain is that over the base agents of the same runs, paired by task."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.results import figures
from trace_bench.results.captions import describe
from trace_bench.results.compare import Difference, cells, check_same_settings, difference
from trace_bench.results.groups import Group, groups_of, world
from trace_bench.results.places import Found, say
from trace_bench.results.statistics import holm, mean
from trace_bench.results.table import Table, gap, style, write

Gains = Mapping[str, Mapping[str, Difference]]
"""By the world's name and the method."""
PAGE = "about_worlds"


def make_worlds(found: Found, out: Path) -> list[Path]:
    """Raises UserError for runs of one world, of several budgets, or that cannot stand together."""
    if len(budgets := sorted({r.budget for r in found.records})) > 1:
        named = ", ".join(map(str, budgets))
        raise UserError(f"`worlds` shows one budget, and these runs have {named}. Name budget=.")
    groups: dict[str, Group] = {}
    for group in groups_of(found.records):
        if (same := groups.setdefault(world(group.records[0]), group)) is not group:
            check_same_settings((*same.records, *group.records))
        say("left out", group.left_out)
    gains = {name: own for name, group in groups.items() if (own := gains_of(group))}
    if len(gains) < 2:
        raise UserError(
            "`worlds` needs runs of two worlds that are not the base agent's own, and these are of "
            f"{', '.join(groups)}."
        )
    about = [" ".join((describe(g.records), *g.remarks)) for g in groups.values()]
    written = write([table(gains, budgets[0])], out, PAGE, "\n\n".join(about))
    return written + draw(gains, budgets[0], out / "worlds")


def gains_of(group: Group) -> dict[str, Difference]:
    """By method: success less that of the base agents of the same runs."""
    return {
        method: difference(cell, cell.base)
        for (method, _), cell in cells(group.records).items()
        if method != style().control
    }


def _order(gains: Gains) -> list[str]:
    """The methods, those with the largest mean gain over their worlds first."""
    methods = {method for own in gains.values() for method in own}
    whole = {m: mean([o[m].interval.value for o in gains.values() if m in o]) for m in methods}
    return sorted(methods, key=lambda m: (-round(whole[m], 9), style().place(m)))


def table(gains: Gains, budget: int, name: str = "worlds", page: str = PAGE) -> Table:
    corrected = holm({f"{w}/{m}": d.p for w, own in gains.items() for m, d in own.items()})

    def shown(column: str, method: str) -> str:
        if method not in gains[column]:
            return "not run"
        star = "*" if corrected[f"{column}/{method}"] < 0.05 else ""
        return f"{gap(gains[column][method].interval)}{star}"

    text = (
        f"Success at {budget} rollouts less that of the base agents, paired by task, with 95 % "
        f"intervals over tasks and seeds. A star: p below 0.05, Holm-corrected over all "
        f"{len(corrected)} gains. All about these runs: {page}.md."
    )
    rows = tuple((method, *(shown(column, method) for column in gains)) for method in _order(gains))
    return Table(name, text, ("method", *gains), rows)


def draw(gains: Gains, budget: int, path: Path) -> list[Path]:
    """A panel a world, a row a method."""
    methods = _order(gains)[::-1]
    looks = style().looks(methods)
    size = (2.2 * len(gains) + 2.4, 0.26 * len(methods) + 1.2)
    figure, (row,) = figures.panels(1, len(gains), size, sharey=True)
    for axes, (column, own) in zip(row, gains.items(), strict=True):
        axes.axvline(0, color=style().look(style().control).colour, linewidth=0.8, zorder=0.8)
        for place, method in enumerate(methods):
            if method in own:
                figures.lying(axes, looks[method], place, own[method].interval)
        axes.set_title(textwrap.fill(figures.plain(column), 26))
        axes.set_xlabel("gain in success")
    row[0].set_yticks(range(len(methods)), [figures.plain(looks[m].label) for m in methods])
    row[0].set_ylim(-0.6, len(methods) - 0.4)
    caption = (
        "Success on held-out tasks less that of the base agent of the same runs, paired by task; "
        "bars are 95 % intervals over tasks and seeds. Each axis has a scale of its own. "
        "Whether two methods differ is in the tables of pairs of each world."
    )
    title = f"What {budget:,} rollouts bring, world by world"
    return figures.finish(figure, title, caption, path)
