"""What the experiments' scripts share: their command line, and what methods gain where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trace_bench.core.command import command
from trace_bench.core.errors import UserError, unknown
from trace_bench.results.cells import Cells, Difference, difference, starred
from trace_bench.results.places import Selection, recorded, select
from trace_bench.results.run import Run
from trace_bench.results.statistics import mean
from trace_bench.results.table import Table, style

Gains = Mapping[str, Mapping[str, Difference]]
"""By a column's name and the method."""
Make = Callable[[Selection, Path, Sequence[str]], list[Path]]
"""Writes a table and a figure of runs to a folder, by some of their settings; the files."""


def script(make: Make, about: str | None, option: str | None = None, needed: bool = False) -> None:
    """Runs a script on its command line, PLACE|FILTER... [OPTION SETTING,...] --out FOLDER."""

    @command()
    def main(arguments: Sequence[str]) -> int:
        parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
        parser.add_argument("places", nargs="+", metavar="PLACE|FILTER")
        parser.add_argument("--out", type=Path, required=True)
        parser.set_defaults(keys="")
        if option is not None:
            parser.add_argument(option, dest="keys", required=needed, metavar="SETTING,...")
        asked = parser.parse_args(arguments)
        keys = recorded(asked.keys).split(",")
        for path in make(select(asked.places), asked.out, [key for key in keys if key]):
            print(path)
        return 0

    sys.exit(main())


def check_keys(runs: Sequence[Run], keys: Sequence[str], option: str) -> None:
    """Raises UserError for a setting that no run has."""
    names = {key for run in runs for key in run.flat}
    for key in keys:
        if key not in names:
            raise unknown("setting", key, sorted(names), option)


def one_budget(runs: Sequence[Run]) -> int:
    """The budget of the runs. Raises UserError for several."""
    first, *others = sorted({r.budget for r in runs})
    if others:
        named = ", ".join(map(str, (first, *others)))
        raise UserError(f"one budget is shown, and these runs have {named}. Name budget=.")
    return first


def gains(grid: Cells) -> dict[str, Difference]:
    """By method: success less that of the base agents of the same runs, at one budget."""
    return {
        method: difference(cell, cell.base)
        for (method, _), cell in grid.items()
        if method != style().control
    }


def order(columns: Gains) -> list[str]:
    """The methods, those with the largest mean gain over the columns first."""
    methods = {method for some in columns.values() for method in some}
    whole = {m: mean([s[m].interval.value for s in columns.values() if m in s]) for m in methods}
    return sorted(methods, key=lambda m: (-round(whole[m], 9), style().place(m)))


def gains_table(name: str, columns: Gains, budget: int, page: str) -> Table:
    """What each method gains over the base agent, a row a method."""
    text_of, count = starred(columns)
    text = (
        f"Success at {budget} rollouts less that of the base agents, paired by task, with 95 % "
        f"intervals over tasks and seeds. A star: p below 0.05, Holm-corrected over all "
        f"{count} gains. All about these runs: {page}.md."
    )
    rows = tuple((m, *(text_of(column, m) for column in columns)) for m in order(columns))
    return Table(name, text, ("method", *columns), rows)
