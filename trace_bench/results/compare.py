"""`results compare`: two agents side by side, each one run or several that differ in the seed only:
what their settings differ in, each against the base agent that its own runs evaluated, and one
against the other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.types import grouped
from trace_bench.results.captions import began_with, repeats_of
from trace_bench.results.cells import Cell, difference
from trace_bench.results.groups import other_data, other_environment
from trace_bench.results.places import MOST_NAMED, Selection
from trace_bench.results.run import Run
from trace_bench.results.statistics import can_show, many
from trace_bench.results.table import Table

_SAME_WORLD = ("env.name", "env.suite", "evaluation.split")


def sides_of(selection: Selection) -> tuple[Cell, Cell]:
    """The two agents, in the order of their runs. Raises UserError for another number of them, and
    for two that cannot be paired."""
    sides = _sides(selection.runs)
    if len(sides) == 1 and len(sides[0].runs) == 2:  # two seeds of one agent
        sides = [replace(sides[0], runs=(r,)) for r in sides[0].runs]
    if len(sides) != 2:
        why = f" ({'; '.join(selection.skipped[:3])})" if selection.skipped else ""
        named = "; ".join(map(_named, sides[:MOST_NAMED])) or "none"
        more = f"; and {len(sides) - MOST_NAMED} more" if len(sides) > MOST_NAMED else ""
        raise UserError(
            "compare takes two finished runs, or two agents with their seeds; found "
            f"{len(sides)}{why}: {named}{more}. Name two folders, or filter by what they differ "
            "in, such as method=, budget=, or any setting."
        )
    check_pairable(*(side.runs[0] for side in sides))
    return sides[0], sides[1]


def _sides(runs: Sequence[Run]) -> list[Cell]:
    """The runs in groups that differ in the seed only. A second run of a seed is another side."""
    before: Counter[tuple[object, ...]] = Counter()

    def side(r: Run) -> tuple[object, ...]:
        plain = json.dumps([r.flat, r.about], sort_keys=True)
        alike = (r.label, r.budget, r.tasks, began_with(r), plain)
        before[alike, r.seed] += 1
        return alike, before[alike, r.seed]

    return [
        Cell(some[0].label, some[0].budget, tuple(sorted(some, key=lambda r: r.seed)))
        for some in grouped(runs, side).values()
    ]


def _named(side: Cell) -> str:
    first, seeds = side.runs[0], many(len(side.runs), "seed")
    return (
        f"{side.method} budget={side.budget} ({seeds}, {first.suite_name}, run {first.fingerprint})"
    )


def check_pairable(one: Run, two: Run) -> None:
    """Raises UserError where the tasks cannot be paired."""
    # A limit above the number of tasks, as none at all, leaves the tasks the same.
    limit = () if one.tasks == two.tasks else ("evaluation.limit",)
    values = {k: (one.settings.get(k), two.settings.get(k)) for k in (*_SAME_WORLD, *limit)}
    differ = "; ".join(f"{key} is {x} and {y}" for key, (x, y) in values.items() if x != y)
    if differ or one.tasks != two.tasks:
        raise UserError(
            f"runs {one.fingerprint} and {two.fingerprint} were evaluated on other held-out tasks"
            f"{f' ({differ})' if differ else ''}, so they cannot be paired. Run one of them again "
            "with the suite, evaluation.split and evaluation.limit of the other."
        )
    if code := other_environment(one, two):
        raise UserError(
            f"runs {one.fingerprint} and {two.fingerprint} were made with other code of the "
            f"environment ({code}): the same task ids may stand for other tasks, so they cannot be "
            "paired. Run both again with one version of the environment."
        )


def text(a: Cell, b: Cell) -> str:
    one, two = a.runs[0], b.runs[0]
    seeds, repeats = min(len(a.runs), len(b.runs)), repeats_of([*a.runs, *b.runs])
    lines = [_table(a, b).markdown(), can_show(len(one.success), seeds, one.trials, repeats)]
    if data := other_data(one, two):
        facts = "; ".join(f"{name} is {x} and {y}" for name, x, y in data)
        lines.append(f"Other data ({facts}): one task id may stand for two tasks.")
    if len(a.runs) == len(b.runs) == 1:
        lines.append("One seed each: the interval and p are over tasks, for these two seeds.")
    return "\n".join([*lines, "", *_differences(a, b)])


def _table(a: Cell, b: Cell) -> Table:
    rows, sides = [], (("A", a), ("B", b))
    for name, cell in sides:
        gain = difference(cell, cell.base)
        rows.append((f"{name}: {cell.method}", cell.text, *gain.columns(gain.p)))
    rows += [(f"base of {name}", cell.base.text, "", "") for name, cell in sides]
    for name, one, two in (("", a, b), ("base of ", a.base, b.base)):
        less = difference(one, two)
        value, p = less.columns(less.p)
        rows.append((f"{name}A minus {name}B", value, "", p))
    caption = (
        f"{len(a.runs[0].success)} held-out tasks. Differences are paired by task, with 95 % "
        "intervals; p over tasks and seeds, of each comparison alone."
    )
    return Table("compare", caption, ("", "success", "over its own base", "p"), tuple(rows))


def _differences(a: Cell, b: Cell) -> list[str]:
    one, two = settings_of(a), settings_of(b)
    differ = [f"  {k}: {one[k]} | {two[k]}" for k in one if k in two and one[k] != two[k]]
    for side, mine, other in (("A", one, two), ("B", two, one)):
        # Counted by group: of another method or part there are dozens.
        groups = grouped((k for k in mine if k not in other), lambda key: key.partition(".")[0])
        counts = [some[0] if len(some) == 1 else f"{len(some)} of {group}"
                  for group, some in groups.items()]  # fmt: skip
        differ += [f"  settings that only {side} has: {', '.join(counts)}"] if counts else []
    names = [", ".join(r.fingerprint for r in cell.runs) for cell in (a, b)]
    head = f"run A {names[0]} ({a.method}) and run B {names[1]} ({b.method})"
    if not differ:
        return [f"{head} have the same settings."]
    return [f"{head} differ in (A | B):", *differ]


def settings_of(cell: Cell) -> dict[str, Any]:
    """All that decides the results of an agent, flat."""
    first = cell.runs[0]
    return {
        "method": first.titled,
        "budget": first.budget,
        "seed": ", ".join(str(r.seed) for r in cell.runs),
        "training.suite": first.trained_on.get("training.suite", "none"),
        "begins with": began_with(first) or "the bare model",
        **first.flat,
    }
