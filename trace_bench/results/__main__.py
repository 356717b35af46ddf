"""`python -m trace_bench.results`: tables and figures from finished runs.

    collect PLACES... --out FILE          records of run folders in one small file to commit
    tables PLACES... --out FOLDER         tables (Markdown, LaTeX, CSV) and figures (PNG, SVG), a
                                          folder for each group of runs that can stand together
                                          --across SETTING: runs may differ in it, too (also of
                                          over, regrade, search, plan)
    over PLACES... --setting S --out FOLDER   over the values of one setting that is a number
                                          (--setting S,T,...: T and others vary along with S)
    search PLACES... --out FOLDER         settings that were tried on the development split
    compare RUN RUN [--csv FILE]          two runs, or two agents with their seeds, also of one
                                          method: what their settings differ in, each against its
                                          own base agent, one against the other; --csv: by task
    plan DIFFERENCE PLACES...             how many seeds and tasks show it, from runs of the same
                                          world, and what they cost; --comparisons N, --looks N
    regrade PLACES... rule=RULE --out FOLDER
                                          the tables under another reporting rule, from the
                                          attempts that the run folders keep
    export RUN --out FOLDER               one run as logs that Inspect reads
    view PLACES... [--port N] [--out SITE]
                                          runs in Inspect's viewer, here or as a static site

A place is a run folder, a folder with run folders somewhere below it, or a file of records.
Filters choose among what lies there: method=trace,grpo budget=640, also seed=, env=, suite=,
split=, model=, or any setting by its full name. What is left out is named, with the reason.

Reporting rules: retry (the default), exclude, zero. --coverage SHARE: of the held-out episodes
that must have a score (default 0.9); `tables` leaves out runs with fewer, other
tables and `compare` refuse them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.command import command
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.store import remove_leftovers, write_text
from trace_bench.results import figures, inspect, over, places, plan, search, tables, two
from trace_bench.results.captions import by_total
from trace_bench.results.filters import select
from trace_bench.results.groups import across, recorded
from trace_bench.results.places import Selection
from trace_bench.results.records import as_line
from trace_bench.results.rules import RULES
from trace_bench.results.statistics import many

COVERAGE = 0.9  # the share of held-out episodes that must have a score, unless another is given
ONLY: Mapping[str, tuple[tuple[str, ...], type, str]] = {
    "csv": (("compare",), Path, "of compare: a file for the differences by task"),
    "across": (("tables", "over", "regrade", "search", "plan"), str,
               "of tables, over, regrade, search, plan: SETTING,... of rows"),
    "setting": (("over",), str, "of over: that of the axis"),
    "port": (("view",), int, "of view (default: 7575)"),
    "comparisons": (("plan",), int, "of plan: in one table (default: 1)"),
    "looks": (("plan",), int, "of plan: how often the table is made (default: 1)"),
}  # fmt: skip
"""Options that belong to some of the commands: these, their type, and what they are."""


@command()
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("results", __doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("places", nargs="*", metavar="PLACE|FILTER")
    parser.add_argument("--out", type=Path)
    for name, (_, kind, text) in ONLY.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--coverage", type=float, default=COVERAGE)
    asked = parser.parse_intermixed_args(arguments)
    if asked.out is None and asked.command not in ("compare", "view", "plan"):
        parser.error("the following arguments are required: --out")
    if asked.setting is None and asked.command == "over":
        parser.error("over needs --setting, such as method.breadth")
    for name, (commands, *_) in ONLY.items():
        if getattr(asked, name) is not None and asked.command not in commands:
            parser.error(f"--{name} is an option of {' and '.join(commands)}")
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
        _some(asked.places).runs,
        key=lambda r: (r.label, r.training_tasks, r.budget, r.seed, str(r.method_settings)),
    )
    write_text(asked.out, "".join(map(as_line, ordered)))
    return [asked.out]


def _tables(asked: argparse.Namespace) -> list[Path]:
    usable = tables.usable(_some(asked.places), asked.coverage)
    figures.check_installed()
    return tables.make_tables(_rows(usable, asked.across), asked.out)


def _regrade(asked: argparse.Namespace) -> list[Path]:
    named = [p.removeprefix("rule=") for p in asked.places if p.startswith("rule=")]
    if len(named) != 1:
        raise UserError(f"regrade needs one rule=...; allowed: {', '.join(RULES)}.")
    if named[0] not in RULES:
        raise unknown("rule", named[0], RULES, "rule")
    others = [p for p in asked.places if p != f"rule={named[0]}"]
    usable = tables.usable(_some(others, named[0]), asked.coverage)
    figures.check_installed()
    return tables.make_tables(_rows(usable, asked.across), asked.out)


def _over(asked: argparse.Namespace) -> list[Path]:
    runs = _scored(asked)
    figures.check_installed()
    return over.make_over(runs, asked.out, recorded(asked.setting))


def _search(asked: argparse.Namespace) -> list[Path]:
    return search.make_search(_scored(asked), asked.out, _keys(asked.across))


def _compare(asked: argparse.Namespace) -> list[Path]:
    a, b = two.chosen(asked.places)
    places.check_coverage((*a.runs, *b.runs), asked.coverage)
    text = two.compare_two(a, b)
    if asked.csv is not None:
        write_text(asked.csv, two.per_task(a, b))
    print(text)
    if asked.out is not None:
        write_text(asked.out / "compare.md", text + "\n")
    return []


def _plan(asked: argparse.Namespace) -> list[Path]:
    """Prints how many seeds and tasks a difference needs."""
    first, *arguments = asked.places or [""]
    try:
        size = float(first)
    except ValueError:
        size = 0.0
    counts = [1 if n is None else n for n in (asked.comparisons, asked.looks)]
    if not 0 < size < 1 or min(counts) < 1:
        raise UserError(
            f"plan {first} --comparisons {counts[0]} --looks {counts[1]}: allowed are a difference "
            "between 0 and 1, such as 0.05, before the places, and 1 or more of both."
        )
    runs = by_total(across(select(arguments).runs, _keys(asked.across)))
    print(plan.text(size, plan.varied(runs), *counts))
    return []


def _export(asked: argparse.Namespace) -> list[Path]:
    if len(asked.places) != 1:
        raise UserError(f"export takes one run folder, got {len(asked.places)}.")
    written = inspect.export(Path(asked.places[0]), asked.out)
    print(f"{asked.out}: {many(len(written), 'file')}")
    return []


def _view(asked: argparse.Namespace) -> list[Path]:
    inspect.check_installed(asked.places)
    folders = [r.folder for r in select(asked.places).runs if r.folder]
    if not folders:
        raise UserError("view needs folders of finished runs; name at least one.")
    if asked.out is not None:
        return inspect.bundle(folders, asked.out)
    inspect.serve(folders, inspect.PORT if asked.port is None else asked.port)
    return []


COMMANDS: Mapping[str, Callable[[argparse.Namespace], list[Path]]] = {
    "collect": _collect, "tables": _tables, "over": _over, "search": _search, "compare": _compare,
    "plan": _plan, "regrade": _regrade, "export": _export, "view": _view,
}  # fmt: skip


def _some(arguments: Sequence[str], rule: str | None = None) -> Selection:
    """The runs that places and filters leave. Raises UserError where there is none."""
    selection = select(arguments, rule)
    if not selection.runs:
        raise UserError(
            f"no finished run in {', '.join(arguments) or 'no place'}; name run folders or record "
            "files."
        )
    return selection


def _scored(asked: argparse.Namespace) -> Selection:
    selection = _some(asked.places)
    places.check_coverage(selection.runs, asked.coverage)
    return _rows(selection, asked.across)


def _rows(selection: Selection, keys: str | None) -> Selection:
    """The runs as they stand in tables: by all that was spent, named by the settings `--across`."""
    return replace(selection, runs=by_total(across(selection.runs, _keys(keys))))


def _keys(text: str | None) -> list[str]:
    return [] if text is None else recorded(text).split(",")


if __name__ == "__main__":
    sys.exit(main())
