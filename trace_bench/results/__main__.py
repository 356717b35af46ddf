"""`python -m trace_bench.results`: tables and figures from finished runs.

    collect PLACES... --out FILE          records of run folders in one small file to commit
    tables PLACES... --out FOLDER         tables (Markdown, LaTeX, CSV) and figures (PNG, SVG), a
                                          folder for each group of runs that can stand together
                                          --prices FILE: also what they cost in money
                                          --across SETTING: runs may differ in it, too (also of map)
    map PLACES... --out FOLDER            over the number of training tasks (env.train_tasks)
    over PLACES... --setting S --out FOLDER   over the values of one setting that is a number
                                          (--setting S,T,...: T and others vary along with S)
    capabilities PLACES... --out FOLDER   over how many capabilities are used at most
    sizes PLACES... --out FOLDER          what methods bring and cost over the size of the model
    search PLACES... --out FOLDER         settings that were tried on the development split
    compare RUN RUN [--csv FILE]          two runs, or two agents with their seeds, also of one
                                          method: what their settings differ in, each against its
                                          own base agent, one against the other; --csv: by task
    paper [PLACES...] --out FOLDER        the paper's tables with implied intervals, ours beside
    regrade PLACES... rule=RULE --out FOLDER
                                          the tables under another reporting rule, from the
                                          attempts that the run folders keep
    export RUN --out FOLDER [--format card|inspect|atif|hf]
                                          one run as a publication bundle (a rollout card), or
                                          for Inspect, Harbor or the Hugging Face hub
    view PLACES... [--port N] [--out SITE]
                                          runs in Inspect's viewer, here or as a static site

A place is a run folder, a folder with run folders somewhere below it, or a file of records.
Filters choose among what lies there: method=trace,grpo budget=640, also seed=, env=, suite=,
split=, model=, or any setting by its full name. What is left out is named, with the reason.

Reporting rules: retry (the default), exclude, zero. --coverage SHARE: of the held-out episodes
that must have a score (default 0.9); `tables` leaves out runs with fewer, other
tables and `compare` refuse them. A folder of runs gets an index, a hidden file that is checked
against the runs' files; --no-index reads all of them anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.command import command
from trace_bench.core.command import parser as parser_of
from trace_bench.core.errors import UserError
from trace_bench.core.store import remove_leftovers, write_text
from trace_bench.core.text import visible
from trace_bench.results import choose, make, rules, two
from trace_bench.results.captions import by_total
from trace_bench.results.groups import with_own
from trace_bench.results.places import Found, find
from trace_bench.results.prices import read_prices

ONLY = {
    "format": ("export",), "csv": ("compare",), "prices": ("tables", "regrade"), "port": ("view",),
    "across": ("tables", "map", "over", "regrade"), "setting": ("over",),
}  # fmt: skip
"""Options that belong to some of the commands."""


@command()
def main(arguments: Sequence[str]) -> int:
    parser = parser_of("results", __doc__)
    more = ("over", "compare", "regrade", "export", "view")
    parser.add_argument("command", choices=[*make.COMMANDS, *more])
    parser.add_argument("places", nargs="*", metavar="PLACE|FILTER")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--format", help="of export (default: card)")
    parser.add_argument("--csv", type=Path, help="of compare: a file for the differences by task")
    parser.add_argument("--prices", type=Path, help="of tables: a YAML file of prices")
    parser.add_argument("--across", help="of tables, map and over: SETTING,... that rows name")
    parser.add_argument("--setting", help="of over: the setting of the axis")
    parser.add_argument("--port", type=int, help="of view (default: 7575)")
    parser.add_argument("--coverage", type=float, default=rules.COVERAGE)
    parser.add_argument("--no-index", action="store_true")
    given = parser.parse_intermixed_args(arguments)
    if given.out is None and given.command not in ("compare", "view"):
        parser.error("the following arguments are required: --out")
    if given.setting is None and given.command == "over":
        parser.error("over needs --setting, such as method.breadth")
    for name, commands in ONLY.items():
        if getattr(given, name) is not None and given.command not in commands:
            parser.error(f"--{name} is an option of {' and '.join(commands)}")
    if given.out is not None:
        remove_leftovers(given.out.parent.glob(f".{given.out.name}.*.tmp"))
        remove_leftovers(given.out.glob(".*.tmp"))
    if not 0 <= given.coverage <= 1:
        raise UserError(f"--coverage {given.coverage} is no share; allowed: 0 to 1.")
    if given.command == "compare":
        return _compare(given)
    if given.command == "view":
        return _view(given)
    written = _carry_out(given)
    for path in written:
        print(path)
    return 0


def _compare(given: argparse.Namespace) -> int:
    """Prints the comparison, and with a folder writes it there, too."""
    sides = two.chosen(given.places, indexed=not given.no_index)
    _print("note", sides.notes)
    _print("skipped", sides.skipped)
    _print("left out", sides.left_out)
    rules.check_coverage((*sides.a.records, *sides.b.records), given.coverage)
    text = two.compare_two(sides.a, sides.b)
    if given.csv is not None:
        write_text(given.csv, two.per_task(sides.a, sides.b, sides.folders))
    print(text)
    if given.out is not None:
        write_text(given.out / "compare.md", text + "\n")
    return 0


def _view(given: argparse.Namespace) -> int:
    """Shows the runs, or writes the site."""
    from trace_bench.results import view

    view.check_installed(given.places)
    found = _found(given.places, None, indexed=not given.no_index)
    folders = [
        found.folders[r.fingerprint] for r in found.records if r.fingerprint in found.folders
    ]
    if not folders:
        raise UserError("view needs folders of finished runs; name at least one.")
    if given.out is None:
        view.serve(folders, view.PORT if given.port is None else given.port)
    else:
        for path in view.bundle(folders, given.out):
            print(path)
    return 0


def _carry_out(given: argparse.Namespace) -> list[Path]:
    places, command, rule = given.places, given.command, None
    if command == "regrade":
        named = [p.removeprefix("rule=") for p in places if p.startswith("rule=")]
        if len(named) != 1:
            raise UserError(f"regrade needs one rule=...; allowed: {', '.join(rules.RULES)}.")
        rule, places = rules.check(named[0]), [p for p in places if not p.startswith("rule=")]
        command = "tables"
    if command == "export":
        from trace_bench.results.formats import export

        if len(places) != 1:
            raise UserError(f"export takes one run folder, got {len(places)}.")
        return export(Path(places[0]), given.out, given.format or "card")
    found = _found(places, rule, indexed=not given.no_index)
    if not found.records and command != "paper":
        raise UserError(
            f"no finished run in {', '.join(places) or 'no place'}; name run folders or record "
            "files."
        )
    if command == "tables":
        before = len(found.skipped)
        found = make.usable(found, given.coverage)
        _print("left out", found.skipped[before:])
    elif command != "collect":
        rules.check_coverage(found.records, given.coverage)
    if command not in make.AS_RECORDED:
        found = replace(found, records=by_total(found.records))
    if given.across is not None:
        found = replace(found, records=tuple(with_own(found.records, given.across.split(","))))
    if command in make.DRAWING:
        from trace_bench.results import drawing

        drawing.check_installed()
    if given.prices is not None:
        return make.make_tables(found, given.out, read_prices(given.prices))
    if given.setting is not None:
        return make.make_over(found, given.out, given.setting)
    return make.COMMANDS[command](found, given.out)


def _found(arguments: Sequence[str], rule: str | None, indexed: bool) -> Found:
    """The runs that places and filters leave; what is left out is listed on stderr."""
    places, filters = choose.split(arguments)
    found = find([Path(p) for p in places], rule, indexed)
    _print("note", found.notes)
    _print("skipped", found.skipped)
    kept, left_out = choose.choose(found.records, filters)
    _print("left out", left_out)
    return replace(found, records=kept)


def _print(what: str, lines: Sequence[str]) -> None:
    for text in lines:
        print(" ".join(visible(f"{what}: {text}").splitlines()), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
