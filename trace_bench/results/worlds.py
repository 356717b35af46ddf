"""What methods bring over the agent that they began with, world by world: a table and a figure.

Runs of several worlds, or of one at several temperatures, stand in no other table together. Here
each is a column, and a gain is that over the base agents of the same runs, paired by task."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
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
    budget = one_budget(found, "worlds")
    groups: dict[str, Group] = {}
    for group in groups_of(found.records):
        if (same := groups.setdefault(world(group.records[0]), group)) is not group:
            check_same_settings((*same.records, *group.records))
        say("left out", group.left_out)
    own = {name: gains_of(group) for name, group in groups.items()}
    gains = _named_alike({name: some for name, some in own.items() if some})
    if len(gains) < 2:
        raise UserError(
            "`worlds` needs runs of two worlds that are not the base agent's own, and these are of "
            f"{', '.join(groups)}."
        )
    about = [" ".join((describe(g.records), *g.remarks)) for g in groups.values()]
    written = write([table(gains, budget)], out, PAGE, "\n\n".join(about))
    return written + draw(gains, budget, out / "worlds")


def gains_of(group: Group) -> dict[str, Difference]:
    """By method: success less that of the base agents of the same runs."""
    return {
        method: difference(cell, cell.base)
        for (method, _), cell in cells(group.records).items()
        if method != style().control
    }


def _named_alike(gains: Gains) -> Gains:
    """With methods of one name in figures as one row, where no world has both: GRPO is `grpo` in
    one and `rl, grpo` in another, where `rl` has several algorithms."""
    label = {m: style().look(m).label for own in gains.values() for m in own}
    both = {a for own in gains.values() for a, n in Counter(map(label.get, own)).items() if n > 1}
    first: dict[str, str] = {}
    row = {m: m if a in both else first.setdefault(a, m) for m, a in label.items()}
    return {name: {row[m]: found for m, found in own.items()} for name, own in gains.items()}


def one_budget(found: Found, command: str) -> int:
    """The budget of all runs. Raises UserError where they have several."""
    if len(budgets := sorted({r.budget for r in found.records})) > 1:
        named = ", ".join(map(str, budgets))
        raise UserError(f"`{command}` shows one budget, and these runs have {named}. Name budget=.")
    return budgets[0]


def starred(found: Gains) -> tuple[Callable[[str, str], str], int]:
    """What a table shows of each difference, with a star where p is below 0.05 by Holm's correction
    over all of them; and how many they are."""
    corrected = holm({f"{a}/{b}": d.p for a, own in found.items() for b, d in own.items()})

    def shown(column: str, row: str) -> str:
        if row not in found[column]:
            return "not run"
        star = "*" if corrected[f"{column}/{row}"] < 0.05 else ""
        return f"{gap(found[column][row].interval)}{star}"

    return shown, len(corrected)


def _order(gains: Gains) -> list[str]:
    """The methods, those with the largest mean gain over their worlds first."""
    methods = {method for own in gains.values() for method in own}
    whole = {m: mean([o[m].interval.value for o in gains.values() if m in o]) for m in methods}
    return sorted(methods, key=lambda m: (-round(whole[m], 9), style().place(m)))


def table(gains: Gains, budget: int, name: str = "worlds", page: str = PAGE) -> Table:
    shown, count = starred(gains)
    text = (
        f"Success at {budget} rollouts less that of the base agents, paired by task, with 95 % "
        f"intervals over tasks and seeds. A star: p below 0.05, Holm-corrected over all "
        f"{count} gains. All about these runs: {page}.md."
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
