"""Two agents side by side: what their settings differ in, each against the base agent that its own
runs evaluated, and one against the other, on the tasks that they share. A side is one run, or
several that differ in nothing but the seed."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_if_there, read_lines
from trace_bench.core.types import Outcome, grouped
from trace_bench.results.captions import began_with, repeats_of
from trace_bench.results.compare import Cell, Difference, difference, other_data, other_environment
from trace_bench.results.filters import choose, split
from trace_bench.results.places import Selection, find, say
from trace_bench.results.run import Run
from trace_bench.results.statistics import ASSUMED, can_show, many, p_value
from trace_bench.results.table import Table, estimate, gap

_SAME_TASKS = ("env.name", "env.suite", "evaluation.split")
_LIMIT = "evaluation.limit"
_MOST_NAMED = 12


@dataclass(frozen=True)
class Side:
    """Runs of one agent with other seeds. `shared`: the names of the tasks that are compared, where
    the runs were evaluated on others too (`also` of them)."""

    runs: tuple[Run, ...]
    shared: tuple[str, ...] = ()
    also: int = 0

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def name(self) -> str:
        return ", ".join(r.fingerprint for r in self.runs)

    @property
    def folder(self) -> Path | None:
        return next((r.folder for r in self.runs if r.folder), None)

    @cached_property
    def cell(self) -> Cell:
        return Cell(self.first.label, self.first.budget, self.runs)

    def on(self, shared: Sequence[str], ids: Sequence[str]) -> Side:
        """The side on these of its tasks; `ids` names all of them, in the runs' order."""
        runs = self.cell.on([ids.index(task) for task in shared]).runs
        return Side(runs, tuple(shared), len(ids) - len(shared))

    def settings(self) -> dict[str, Any]:
        seeds = ", ".join(str(r.seed) for r in self.runs)
        first = {"method": self.first.label, "budget": self.first.budget, "seed": seeds}
        first["training.suite"] = self.first.trained_on.get("training.suite", "none")
        first["begins with"] = began_with(self.first) or "the bare model"
        return {**first, "rule": self.first.rule, **self.first.flat}


def sides_of(selections: Sequence[Selection]) -> tuple[Side, Side]:
    """The sides: what lies at two places, or all found at one. UserError for another number."""
    if len(selections) == 2:
        a, b = (_sides(f.runs) for f in selections)
        if len(a) == len(b) == 1:
            return _two(a[0], b[0])
    runs: dict[object, Run] = {}
    for r in (r for f in selections for r in f.runs):
        key = r.fingerprint or id(r)  # of a run that is named twice the last, and its folder
        there = runs.get(key, r).folder
        runs[key] = r if r.folder else replace(r, folder=there)
    sides = _sides(list(runs.values()))
    if len(sides) == 1 and len(sides[0].runs) == 2:  # two seeds of one agent
        sides = [Side((r,)) for r in sides[0].runs]
    if len(sides) != 2:
        skipped = [text for f in selections for text in f.skipped]
        why = f" ({'; '.join(skipped[:3])})" if skipped else ""
        named = "; ".join(map(_named, sides[:_MOST_NAMED])) or "none"
        more = f"; and {len(sides) - _MOST_NAMED} more" if len(sides) > _MOST_NAMED else ""
        raise UserError(
            "compare takes two finished runs, or two agents with their seeds; found "
            f"{len(sides)}{why}: {named}{more}. Name two folders, or filter by what they differ "
            "in, such as method=, budget=, or any setting."
        )
    return _two(sides[0], sides[1])


def _sides(runs: Sequence[Run]) -> list[Side]:
    """The runs in groups that differ in the seed only. A second run of a seed is another side."""
    sides: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    before: Counter[tuple[object, ...]] = Counter()
    for r in runs:
        settings = json.dumps(r.flat, sort_keys=True)
        about = json.dumps(r.about, sort_keys=True)
        alike = (r.label, r.budget, r.rule, r.tasks, began_with(r), settings, about)
        sides[alike, before[alike, r.seed]].append(r)
        before[alike, r.seed] += 1
    return [Side(tuple(sorted(side, key=lambda r: r.seed))) for side in sides.values()]


def _named(side: Side) -> str:
    r = side.first
    return (
        f"{r.label} budget={r.budget} ({many(len(side.runs), 'seed')}, "
        f"{r.suite_name}, run {r.fingerprint})"
    )


def _two(a: Side, b: Side) -> tuple[Side, Side]:
    """The sides on the tasks that they share. Raises UserError where they cannot be paired."""
    twice = {r.fingerprint for r in a.runs} & {r.fingerprint for r in b.runs} - {""}
    if twice:
        raise UserError(f"run {', '.join(sorted(twice))} is named twice; name two runs.")
    one, two = a.first, b.first
    values = {key: (one.settings.get(key), two.settings.get(key)) for key in _SAME_TASKS}
    differ = "; ".join(f"{key} is {x} and {y}" for key, (x, y) in values.items() if x != y)
    limits = one.settings.get(_LIMIT), two.settings.get(_LIMIT)
    if differ or (one.tasks != two.tasks and limits[0] == limits[1]):
        raise UserError(
            f"runs {one.fingerprint} and {two.fingerprint} were evaluated on other held-out tasks"
            f"{f' ({differ})' if differ else ''}, so they cannot be paired. Run one of them again "
            "with the suite and evaluation.split of the other."
        )
    if code := other_environment(one, two):
        raise UserError(
            f"runs {one.fingerprint} and {two.fingerprint} were made with other code of the "
            f"environment ({code}): the same task ids may stand for other tasks, so they cannot be "
            "paired. Run both again with one version of the environment."
        )
    if one.tasks == two.tasks:
        return a, b
    named = [_task_ids(side) for side in (a, b)]
    shared = sorted(set(named[0]) & set(named[1]))
    if not shared:
        raise UserError(
            f"runs {one.fingerprint} and {two.fingerprint} share no held-out task "
            f"(evaluation.limit is {limits[0]} and {limits[1]}). Run one again with the other's."
        )
    return a.on(shared, named[0]), b.on(shared, named[1])


def _task_ids(side: Side) -> list[str]:
    """The names of the side's held-out tasks, in the runs' order, from one of its folders."""
    if side.folder is None:
        raise UserError(
            f"the names of the tasks of run {side.first.fingerprint} are needed here, which a file "
            "of records does not hold. Name the folder of one of its runs."
        )
    outcomes = read_lines(side.folder / "evaluation.jsonl", Outcome)
    return sorted({o.task for o in outcomes if o.agent == "final"})


def compare_two(a: Side, b: Side) -> str:
    table = _table(a, b)
    lines = [table.markdown(), _what_it_can_show(a, b)]
    if data := other_data(a.first, b.first):
        facts = "; ".join(f"{name} is {x} and {y}" for name, x, y in data)
        lines.append(f"Other data ({facts}): one task id may stand for two tasks.")
    if a.shared:
        lines.append(
            f"Compared on the {len(a.shared)} tasks that both were evaluated on; A was on "
            f"{a.also} more, B on {b.also} more, which do not count here."
        )
    if len(a.runs) == len(b.runs) == 1:
        lines.append("One seed each: the interval and p are over tasks, for these two seeds.")
    return "\n".join([*lines, "", *_settings(a, b)])


def _settings(a: Side, b: Side) -> list[str]:
    one, two = a.settings(), b.settings()
    differ = [f"  {k}: {one[k]} | {two[k]}" for k in one if k in two and one[k] != two[k]]
    for side, mine, other in (("A", one, two), ("B", two, one)):
        # Counted by group: of another method or part there are dozens.
        groups = grouped((k for k in mine if k not in other), lambda key: key.partition(".")[0])
        counts = [some[0] if len(some) == 1 else f"{len(some)} of {group}"
                  for group, some in groups.items()]  # fmt: skip
        differ += [f"  settings that only {side} has: {', '.join(counts)}"] if counts else []
    head = f"run A {a.name} ({a.first.label}) and run B {b.name} ({b.first.label})"
    if not differ:
        return [f"{head} have the same settings."]
    return [f"{head} differ in (A | B):", *differ]


def _table(a: Side, b: Side) -> Table:
    rows, sides = [], (("A", a.cell), ("B", b.cell))
    for name, cell in sides:
        against = _shown(difference(cell, cell.base))
        rows.append((f"{name}: {cell.method}", estimate(cell.interval()), *against))
    rows += [(f"base of {name}", estimate(cell.base.interval()), "", "") for name, cell in sides]
    for name, one, two in (("", a.cell, b.cell), ("base of ", a.cell.base, b.cell.base)):
        value, p = _shown(difference(one, two))
        rows.append((f"{name}A less {name}B", value, "", p))
    text = (
        f"{len(a.first.success)} held-out tasks. Differences are paired by task, with 95 % "
        "intervals; p over tasks and seeds, of each comparison alone."
    )
    return Table("compare", text, ("", "success", "less its own base", "p"), tuple(rows))


def _shown(difference_: Difference) -> tuple[str, str]:
    return gap(difference_.interval), p_value(difference_.p)


def _what_it_can_show(a: Side, b: Side) -> str:
    """From seeds or trials, or two bases that are repeats of one agent, else assumed."""
    trials = int(a.first.settings.get("evaluation.trials", 1))
    repeats = repeats_of([*a.runs, *b.runs])
    keys = {**a.first.settings, **b.first.settings}
    agents = [k for k in keys if k.startswith(("model.", "policy."))]
    same_base = all(a.first.settings.get(k) == b.first.settings.get(k) for k in agents)
    if repeats is ASSUMED and same_base:
        one, two = a.cell.base.runs[0], b.cell.base.runs[0]
        options = one.method_settings
        two = replace(two, settings=one.settings, method_settings=options, budget=one.budget)
        repeats = repeats_of([one, two])
    seeds = min(len(a.runs), len(b.runs))
    return can_show(len(a.first.success), seeds, trials, repeats)


def chosen(arguments: Sequence[str]) -> tuple[Side, Side]:
    """The two sides that places and filters leave. Raises UserError."""
    places, filters = split(arguments)
    selections = [find([place]) for place in places]
    say("skipped", [text for each in selections for text in each.skipped])
    return sides_of(choose(selections, filters))


def per_task(a: Side, b: Side) -> str:
    """CSV with a line a task: needs, success of both sides and their base agents (means, empty
    where every one was lost), A less B, and what A is: better, worse, same, or dropped without a
    score. Raises UserError where no run folder names the tasks."""
    side = a if a.folder else b
    ids = a.shared or _task_ids(side)
    tags = read_if_there(side.folder / TASKS) if side.folder else {}
    needs = {task: words for task, words in tags.items() if isinstance(words, list)}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("task", "needs", "A", "B", "A less B", "A is", "base of A", "base of B"))
    columns = [cell.per_task.tolist() for cell in (a.cell, b.cell, a.cell.base, b.cell.base)]
    for task, one, two, *bases in zip(ids, *columns, strict=True):
        words, (less, made) = " ".join(map(str, needs.get(task, ()))), change(one, two)
        writer.writerow((task, words, *map(_figure, (one, two, less)), made, *map(_figure, bases)))
    return out.getvalue()


def _figure(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6g}"


def change(one: float, two: float) -> tuple[float, str]:
    """A less B, and what that makes of A. Means that only rounding tells apart are the same."""
    less = round(one - two, 9) + 0.0  # no -0
    if np.isnan(less):
        return less, "dropped"
    return less, "same" if less == 0 else "better" if less > 0 else "worse"
