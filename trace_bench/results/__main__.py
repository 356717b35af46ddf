"""`python -m trace_bench.results`: tables and figures from finished runs.

    collect PLACES... --out FILE          records of run folders in one small file to commit
    tables PLACES... --out FOLDER         tables (Markdown, LaTeX, CSV) and figures (PNG, SVG), a
                                          folder for each group of runs that can stand together
                                          --across SETTING: runs may differ in it, too (also of map,
                                          over, regrade, search, worlds, plan)
    map PLACES... --out FOLDER            over the number of training tasks (env.train_tasks)
    over PLACES... --setting S --out FOLDER   over the values of one setting that is a number
                                          (--setting S,T,...: T and others vary along with S)
    capabilities PLACES... --out FOLDER   over how many capabilities are used at most
    sizes PLACES... --out FOLDER          what methods bring and cost over the size of the model
    worlds PLACES... --out FOLDER         what methods bring in several worlds
    against PLACES... --setting S --out FOLDER   TRACE against the best of the others, by the values
                                          of S (or S,T,...) and by how many capabilities tasks need
    search PLACES... --out FOLDER         settings that were tried on the development split
    compare RUN RUN [--csv FILE]          two runs, or two agents with their seeds, also of one
                                          method: what their settings differ in, each against its
                                          own base agent, one against the other; --csv: by task
    plan DIFFERENCE PLACES...             how many seeds and tasks show it, from runs of the same
                                          world, and what they cost; --comparisons N, --looks N
    paper [PLACES...] --out FOLDER        the paper's tables with implied intervals, ours beside
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
from trace_bench.results import (
    against,
    details,
    figures,
    inspect,
    over,
    paper,
    places,
    plan,
    sizes,
    tables,
    two,
    worlds,
)
from trace_bench.results.captions import by_total
from trace_bench.results.groups import recorded, with_own
from trace_bench.results.places import Found
from trace_bench.results.records import RULES, as_line, training_tasks
from trace_bench.results.statistics import many

COVERAGE = 0.9  # the share of held-out episodes that must have a score, unless another is given
ONLY: Mapping[str, tuple[tuple[str, ...], type, str]] = {
    "csv": (("compare",), Path, "of compare: a file for the differences by task"),
    "across": (("tables", "map", "over", "regrade", "search", "worlds", "plan"), str,
               "of tables, map, over, regrade, search, worlds, plan: SETTING,... of rows"),
    "setting": (("over", "against"), str, "of over: that of the axis; of against: SETTING,..."),
    "port": (("view",), int, "of view (default: 7575)"),
    "comparisons": (("plan",), int, "of plan: in one table (default: 1)"),
    "looks": (("plan",), int, "of plan: how often the table is made (default: 1)"),
}  # fmt: skip
"""Options that belong to some of the commands: these, their type, and what they are."""


def collect(found: Found, out: Path) -> list[Path]:
    """One line a record, in a fixed order."""
    ordered = sorted(
        found.records,
        key=lambda r: (r.label, training_tasks(r), r.budget, r.seed, str(r.method_settings)),
    )
    write_text(out, "".join(map(as_line, ordered)))
    return [out]


COMMANDS: Mapping[str, Callable[..., list[Path]]] = {
    "collect": collect,
    "tables": tables.make_tables,
    "map": over.make_map,
    "capabilities": over.make_capabilities,
    "search": details.make_search,
    "sizes": sizes.make_sizes,
    "worlds": worlds.make_worlds,
    "paper": paper.make_paper,
    "over": over.make_over,
    "against": against.make_against,
}
"""What each command makes of the runs that were found, in the place `out`; the files."""
AS_RECORDED = ("collect", "sizes")
"""The commands that take each run's own budget, without what was spent before it."""


@command()
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("results", __doc__)
    more = ("compare", "regrade", "export", "view", "plan")
    parser.add_argument("command", choices=[*COMMANDS, *more])
    parser.add_argument("places", nargs="*", metavar="PLACE|FILTER")
    parser.add_argument("--out", type=Path)
    for name, (_, kind, text) in ONLY.items():
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument("--coverage", type=float, default=COVERAGE)
    given = parser.parse_intermixed_args(arguments)
    if given.out is None and given.command not in ("compare", "view", "plan"):
        parser.error("the following arguments are required: --out")
    if given.setting is None and given.command in ONLY["setting"][0]:
        parser.error(f"{given.command} needs --setting, such as method.breadth")
    for name, (commands, *_) in ONLY.items():
        if getattr(given, name) is not None and given.command not in commands:
            parser.error(f"--{name} is an option of {' and '.join(commands)}")
    if given.out is not None:
        remove_leftovers(given.out.parent.glob(f".{given.out.name}.*.tmp"))
        remove_leftovers(given.out.glob(".*.tmp"))
    if not 0 <= given.coverage <= 1:
        raise UserError(f"--coverage {given.coverage} is no share; allowed: 0 to 1.")
    other = {"compare": _compare, "view": _view, "export": _export, "plan": _plan}
    for path in other.get(given.command, _make)(given):
        print(path)
    return 0


def _compare(given: argparse.Namespace) -> list[Path]:
    a, b = two.chosen(given.places)
    places.check_coverage((*a.records, *b.records), given.coverage)
    text = two.compare_two(a, b)
    if given.csv is not None:
        write_text(given.csv, two.per_task(a, b))
    print(text)
    if given.out is not None:
        write_text(given.out / "compare.md", text + "\n")
    return []


def _plan(given: argparse.Namespace) -> list[Path]:
    """Prints how many seeds and tasks a difference needs."""
    first, *arguments = given.places or [""]
    try:
        size = float(first)
    except ValueError:
        size = 0.0
    counts = [1 if n is None else n for n in (given.comparisons, given.looks)]
    if not 0 < size < 1 or min(counts) < 1:
        raise UserError(
            f"plan {first} --comparisons {counts[0]} --looks {counts[1]}: allowed are a difference "
            "between 0 and 1, such as 0.05, before the places, and 1 or more of both."
        )
    records = by_total(_found(arguments).records)
    print(plan.text(size, plan.varied(with_own(records, _across(given))), *counts))
    return []


def _view(given: argparse.Namespace) -> list[Path]:
    inspect.check_installed(given.places)
    folders = [r.folder for r in _found(given.places).records if r.folder]
    if not folders:
        raise UserError("view needs folders of finished runs; name at least one.")
    if given.out is not None:
        return inspect.bundle(folders, given.out)
    inspect.serve(folders, inspect.PORT if given.port is None else given.port)
    return []


def _export(given: argparse.Namespace) -> list[Path]:
    if len(given.places) != 1:
        raise UserError(f"export takes one run folder, got {len(given.places)}.")
    written = inspect.export(Path(given.places[0]), given.out)
    print(f"{given.out}: {many(len(written), 'file')}")
    return []


def _make(given: argparse.Namespace) -> list[Path]:
    arguments, command, rule = given.places, given.command, None
    if command == "regrade":
        named = [p.removeprefix("rule=") for p in arguments if p.startswith("rule=")]
        if len(named) != 1:
            raise UserError(f"regrade needs one rule=...; allowed: {', '.join(RULES)}.")
        rule, arguments = named[0], [p for p in arguments if p != f"rule={named[0]}"]
        if rule not in RULES:
            raise unknown("rule", rule, RULES, "rule")
        command = "tables"
    found = _found(arguments, rule)
    if not found.records and command != "paper":
        raise UserError(
            f"no finished run in {', '.join(arguments) or 'no place'}; name run folders or record "
            "files."
        )
    if command == "tables":
        found = tables.usable(found, given.coverage)
    elif command != "collect":
        places.check_coverage(found.records, given.coverage)
    if command not in AS_RECORDED:
        found = replace(found, records=by_total(found.records))
    if across := _across(given):
        found = replace(found, records=tuple(with_own(found.records, across)))
    if command not in ("collect", "search"):
        figures.check_installed()
    own: dict[str, object] = {"across": across} if command == "search" else {}
    if given.setting is not None:
        own["setting"] = recorded(given.setting)
    return COMMANDS[command](found, given.out, **own)


def _across(given: argparse.Namespace) -> list[str]:
    return [] if given.across is None else recorded(given.across).split(",")


def _found(arguments: Sequence[str], rule: str | None = None) -> Found:
    """The runs that places and filters leave; what is left out is listed on stderr."""
    named, filters = places.split(arguments)
    found = places.find(named, rule)
    places.say("skipped", found.skipped)
    return places.choose([found], filters)[0]


if __name__ == "__main__":
    sys.exit(main())
