"""`python -m trace_bench.results`: tables and figures from finished runs.

    collect PLACES... --out FILE          records of run folders in one small file to commit
    tables PLACES... --out FOLDER         tables (Markdown, LaTeX, CSV) and figures (PNG, SVG), a
                                          folder for each group of runs that can stand together
                                          --across SETTING: runs may differ in it, too (also of
                                          plan)
    compare RUN RUN                       two runs, or two agents with their seeds, also of one
                                          method: what their settings differ in, each against its
                                          own base agent, one against the other
    plan DIFFERENCE PLACES...             how many seeds and tasks show it, from runs of the same
                                          world, and what they cost; --comparisons N of a table
    export RUN --out FOLDER               one run's conversations as logs that Inspect reads

A place is a run folder, a folder with run folders somewhere below it, or a file of records.
Filters choose among what lies there: method=trace,grpo budget=640, also seed=, env=, suite=, or
any setting by its full name. What is left out is named, with the reason.

`tables` leaves out runs without a score for a tenth of their held-out episodes, `compare` refuses
them.
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
from trace_bench.results.run import as_line


@command()
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("results", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in COMMANDS.items():
        commands.add_parser(name, help=function.__doc__).set_defaults(function=function)
    parsers = commands.choices
    parsers["plan"].add_argument("difference", type=float)
    parsers["export"].add_argument("run", type=Path)
    for name in ("collect", "tables", "compare", "plan"):
        parsers[name].add_argument("places", nargs="+", metavar="PLACE|FILTER")
    for one in (parsers["collect"], parsers["tables"], parsers["export"]):
        one.add_argument("--out", type=Path, required=True)
    for one in (parsers["tables"], parsers["plan"]):
        one.add_argument("--across", metavar="SETTING,...")
    parsers["plan"].add_argument("--comparisons", default=1, help="in one table (default: 1)")
    name, *words = arguments or ("",)
    chosen = parsers.get(name)
    # Which looks for its own words alone, since only such a parser takes places after options.
    asked = chosen.parse_intermixed_args(words) if chosen else parser.parse_args(arguments)
    if out := getattr(asked, "out", None):
        remove_leftovers(out.parent.glob(f".{out.name}.*.tmp"))
        remove_leftovers(out.glob(".*.tmp"))
    for path in asked.function(asked):
        print(path)
    return 0


def _collect(asked: argparse.Namespace) -> list[Path]:
    """Records of run folders in one file to commit, a line a run, in a fixed order."""
    ordered = sorted(
        _some(asked).runs,
        key=lambda r: (r.label, r.training_tasks, r.budget, r.seed, str(r.method_settings)),
    )
    write_text(asked.out, "".join(map(as_line, ordered)))
    return [asked.out]


def _tables(asked: argparse.Namespace) -> list[Path]:
    """Tables and figures of every group of runs that can stand together."""
    return tables.make_tables(_rows(tables.usable(_some(asked)), asked), asked.out)


def _compare(asked: argparse.Namespace) -> list[Path]:
    """Two agents side by side."""
    a, b = compare.sides_of(select(asked.places))
    places.check_coverage((*a.runs, *b.runs))
    print(compare.text(a, b))
    return []


def _plan(asked: argparse.Namespace) -> list[Path]:
    """How many seeds and tasks a difference needs."""
    if not 0 < asked.difference < 1:
        raise UserError(
            f"plan {asked.difference:g} is not allowed; allowed: a difference between 0 and 1, "
            "such as 0.05, before the places."
        )
    comparisons = whole_number("--comparisons", asked.comparisons)
    runs = _rows(select(asked.places), asked).runs
    print(plan.text(asked.difference, plan.varied(runs), comparisons))
    return []


def _export(asked: argparse.Namespace) -> list[Path]:
    """One run's conversations as logs that Inspect reads."""
    return inspect.export(asked.run, asked.out)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], list[Path]]] = {
    "collect": _collect, "tables": _tables, "compare": _compare, "plan": _plan, "export": _export,
}  # fmt: skip


def _some(asked: argparse.Namespace) -> Selection:
    """The runs that places and filters leave. Raises UserError where there is none."""
    selection = select(asked.places)
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
