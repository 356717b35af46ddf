"""`python -m trace_bench.results`: tables and figures from finished runs.

    collect PLACES... --out FILE          records of run folders in one small file to commit
    tables PLACES... --out FOLDER         tables (Markdown, LaTeX, CSV) and figures (PNG, SVG), a
                                          folder for each group of runs that can stand together
                                          --across SETTING: runs may differ in it, too (also of
                                          plan)
                                          --rule RULE: by another reporting rule, from the
                                          attempts that the run folders keep
    compare RUN RUN                       two runs, or two agents with their seeds, also of one
                                          method: what their settings differ in, each against its
                                          own base agent, one against the other
    plan DIFFERENCE PLACES...             how many seeds and tasks show it, from runs of the same
                                          world, and what they cost; --comparisons N of a table
    export RUN --out FOLDER               one run as logs that Inspect reads

A place is a run folder, a folder with run folders somewhere below it, or a file of records.
Filters choose among what lies there: method=trace,grpo budget=640, also seed=, env=, suite=,
split=, model=, or any setting by its full name. What is left out is named, with the reason.

Reporting rules: retry (the default), exclude, zero. --coverage SHARE: of the held-out episodes
that must have a score (default 0.9); `tables` leaves out runs with fewer, `compare` refuses them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.command import command, whole_number
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError
from trace_bench.core.store import remove_leftovers, write_text
from trace_bench.results import compare, inspect, places, plan, tables
from trace_bench.results.captions import by_total
from trace_bench.results.groups import across
from trace_bench.results.places import Selection, recorded, select
from trace_bench.results.records import as_line
from trace_bench.results.run import RULES
from trace_bench.results.statistics import many

COVERAGE = 0.9  # the share of held-out episodes that must have a score, unless another is given
ONLY: Mapping[str, tuple[str, ...]] = {
    "out": ("collect", "tables", "export"),
    "across": ("tables", "plan"),
    "rule": ("tables",),
    "comparisons": ("plan",),
}
"""Options that belong to some of the commands. Those of `out` need it."""


@command()
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("results", __doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("places", nargs="*", metavar="PLACE|FILTER")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--across", metavar="SETTING,...")
    parser.add_argument("--rule", choices=RULES)
    parser.add_argument("--comparisons", help="in one table (default: 1)")
    parser.add_argument("--coverage", type=float, default=COVERAGE)
    asked = parser.parse_intermixed_args(arguments)
    for name, commands in ONLY.items():
        if getattr(asked, name) is not None and asked.command not in commands:
            parser.error(f"--{name} is an option of {' and '.join(commands)}")
    if asked.out is None and asked.command in ONLY["out"]:
        parser.error(f"{asked.command} needs --out")
    if asked.out is not None:
        remove_leftovers(asked.out.parent.glob(f".{asked.out.name}.*.tmp"))
        remove_leftovers(asked.out.glob(".*.tmp"))
    if not 0 <= asked.coverage <= 1:
        raise UserError(f"--coverage {asked.coverage} is no share; allowed: 0 to 1.")
    for path in COMMANDS[asked.command](asked):
        print(path)
    return 0


def _collect(asked: argparse.Namespace) -> list[Path]:
    """One line a run, in a fixed order."""
    ordered = sorted(
        _some(asked).runs,
        key=lambda r: (r.label, r.training_tasks, r.budget, r.seed, str(r.method_settings)),
    )
    write_text(asked.out, "".join(map(as_line, ordered)))
    return [asked.out]


def _tables(asked: argparse.Namespace) -> list[Path]:
    return tables.make_tables(_rows(tables.usable(_some(asked), asked.coverage), asked), asked.out)


def _compare(asked: argparse.Namespace) -> list[Path]:
    a, b = compare.sides_of(select(asked.places))
    places.check_coverage((*a.runs, *b.runs), asked.coverage)
    print(compare.text(a, b))
    return []


def _plan(asked: argparse.Namespace) -> list[Path]:
    """Prints how many seeds and tasks a difference needs."""
    first, *arguments = asked.places or [""]
    try:
        size = float(first)
    except ValueError:
        size = 0.0
    if not 0 < size < 1:
        raise UserError(
            f"plan {first} is not allowed; allowed: a difference between 0 and 1, such as 0.05, "
            "before the places."
        )
    comparisons = whole_number("--comparisons", asked.comparisons or 1)
    runs = _rows(select(arguments), asked).runs
    print(plan.text(size, plan.varied(runs), comparisons))
    return []


def _export(asked: argparse.Namespace) -> list[Path]:
    if len(asked.places) != 1:
        raise UserError(f"export takes one run folder, got {len(asked.places)}.")
    written = inspect.export(Path(asked.places[0]), asked.out)
    print(f"{asked.out}: {many(len(written), 'file')}")
    return []


COMMANDS: Mapping[str, Callable[[argparse.Namespace], list[Path]]] = {
    "collect": _collect, "tables": _tables, "compare": _compare, "plan": _plan, "export": _export,
}  # fmt: skip


def _some(asked: argparse.Namespace) -> Selection:
    """The runs that places and filters leave. Raises UserError where there is none."""
    selection = select(asked.places, asked.rule)
    if not selection.runs:
        raise UserError(
            f"no finished run in {', '.join(asked.places) or 'no place'}; name run folders or "
            "record files."
        )
    return selection


def _rows(selection: Selection, asked: argparse.Namespace) -> Selection:
    """The runs as they stand in tables: by all that was spent, named by the settings `--across`."""
    keys = [] if asked.across is None else recorded(asked.across).split(",")
    return replace(selection, runs=by_total(across(selection.runs, keys)))


if __name__ == "__main__":
    sys.exit(main())
