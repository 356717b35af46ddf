"""What methods bring over the agent that they began with, world by world: a table and a figure.

    PYTHONPATH=.. python worlds.py PLACE|FILTER... [--across SETTING,...] --out FOLDER

Runs of several worlds, or of one at several temperatures, stand in no other table together. Here
each is a column, and a gain is that over the base agents of the same runs, paired by task."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common import Gains, gains, gains_table, one_budget, order, script

from trace_bench.core.errors import UserError
from trace_bench.results import figures
from trace_bench.results.captions import by_total, describe
from trace_bench.results.cells import cells
from trace_bench.results.groups import Group, across, check_same_settings, groups_of, world
from trace_bench.results.places import Selection, say
from trace_bench.results.table import style, write

PAGE = "about_worlds"


def make(selection: Selection, out: Path, keys: Sequence[str]) -> list[Path]:
    """Raises UserError for runs of one world, of several budgets, or that cannot stand together."""
    runs = by_total(across(selection.runs, keys))
    budget = one_budget(runs)
    groups: dict[str, Group] = {}
    for group in groups_of(runs):
        if (same := groups.setdefault(world(group.runs[0]), group)) is not group:
            check_same_settings((*same.runs, *group.runs))
        say("left out", group.left_out)
    every = {name: gains(cells(group.runs)) for name, group in groups.items()}
    by_world = _named_alike({name: some for name, some in every.items() if some})
    if len(by_world) < 2:
        raise UserError(
            "`worlds` needs runs of two worlds that are not the base agent's own, and these are of "
            f"{', '.join(groups)}."
        )
    about = [" ".join((describe(g.runs), *g.remarks)) for g in groups.values()]
    written = write([gains_table("worlds", by_world, budget, PAGE)], out, PAGE, about)
    return written + draw(by_world, budget, out / "worlds")


def _named_alike(by_world: Gains) -> Gains:
    """With methods of one name in figures as one row, where no world has both: GRPO is `grpo` in
    one and `rl, grpo` in another, where `rl` has several algorithms."""
    label = {m: style().looks([m])[m].label for some in by_world.values() for m in some}
    counts = [Counter(label[m] for m in some) for some in by_world.values()]
    both = {a for count in counts for a, n in count.items() if n > 1}
    first: dict[str, str] = {}
    row = {m: m if a in both else first.setdefault(a, m) for m, a in label.items()}
    return {name: {row[m]: gain for m, gain in some.items()} for name, some in by_world.items()}


def draw(by_world: Gains, budget: int, path: Path) -> list[Path]:
    """A panel a world, a row a method."""
    methods = order(by_world)[::-1]
    looks = style().looks(methods)
    size = (2.2 * len(by_world) + 2.4, 0.26 * len(methods) + 1.2)
    figure, (row,) = figures.panels(1, len(by_world), size, sharey=True)
    for axes, (column, some) in zip(row, by_world.items(), strict=True):
        axes.axvline(0, color=style().methods[style().control].colour, linewidth=0.8, zorder=0.8)
        for place, method in enumerate(methods):
            if method in some:
                figures.lying(axes, looks[method], place, some[method].interval)
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


if __name__ == "__main__":
    script(make, __doc__, "--across")
