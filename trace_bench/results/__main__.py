"""`python -m trace_bench.results`: tables and figures from finished runs.

    collect PLACES... --out FILE          records of run folders in one small file to commit
    tables PLACES... --out FOLDER         tables (Markdown, LaTeX, CSV) and figures (PNG, SVG)
    map PLACES... --out FOLDER            over the number of training tasks (env.train_tasks)
    capabilities PLACES... --out FOLDER   over how many capabilities are used at most
    search PLACES... --out FOLDER         settings that were tried on the development split
    compare RUN RUN [--out FOLDER]        two runs, also of one method: what their settings differ
                                          in, each against its own base agent, one against the other
    paper [PLACES...] --out FOLDER        the paper's tables with implied intervals, ours beside
    regrade PLACES... rule=RULE --out FOLDER
                                          the tables under another reporting rule, from the
                                          attempts that the run folders keep
    export RUN --out FOLDER [--format card|inspect|atif|hf]
                                          one run as a publication bundle (a rollout card), or
                                          for Inspect, Harbor or the Hugging Face hub

A place is a run folder, a folder with run folders somewhere below it, or a file of records.
Reporting rules: retry (the default), exclude, zero. --coverage SHARE: of the held-out episodes that
must have a score (default 0.9); runs with fewer are refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.store import remove_leftovers, write_text
from trace_bench.core.text import visible
from trace_bench.results import details, rules, search, tables
from trace_bench.results.beginnings import by_total
from trace_bench.results.compare import cells, check_comparable
from trace_bench.results.places import Found, find
from trace_bench.results.records import as_line, training_tasks
from trace_bench.results.style import style
from trace_bench.results.table import Table
from trace_bench.results.tables import describe, readable
from trace_bench.results.two import compare_places


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m trace_bench.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=[*COMMANDS, "compare", "regrade", "export"])
    parser.add_argument("places", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--format", default="card", help="of export (default: card)")
    parser.add_argument("--coverage", type=float, default=rules.COVERAGE)
    given = parser.parse_args(arguments)
    if given.out is None and given.command != "compare":
        parser.error("the following arguments are required: --out")
    if given.out is not None:
        remove_leftovers(given.out.parent.glob(f".{given.out.name}.*.tmp"))
        remove_leftovers(given.out.glob(".*.tmp"))
    try:
        if given.command == "compare":
            return _compare(given.places, given.out)
        written = _carry_out(given)
    except UserError as error:
        print(visible(f"error: {error}"), file=sys.stderr)
        return 2
    for path in written:
        print(path)
    return 0


def _compare(places: Sequence[str], out: Path | None) -> int:
    """Prints the comparison, and with a folder writes it there, too."""
    text = compare_places(places)
    print(text)
    if out is not None:
        write_text(out / "compare.md", text + "\n")
    return 0


def _carry_out(given: argparse.Namespace) -> list[Path]:
    if not 0 <= given.coverage <= 1:
        raise UserError(f"--coverage {given.coverage} is no share; allowed: 0 to 1.")
    places, command = given.places, given.command
    rule = None
    if command == "regrade":
        named = [p.removeprefix("rule=") for p in places if p.startswith("rule=")]
        if len(named) != 1:
            raise UserError(f"regrade needs one rule=...; allowed: {', '.join(rules.RULES)}.")
        rule, places = rules.check(named[0]), [p for p in places if not p.startswith("rule=")]
    if command == "export":
        from trace_bench.results.formats import export

        if len(places) != 1:
            raise UserError(f"export takes one run folder, got {len(places)}.")
        return export(Path(places[0]), given.out, given.format)
    found = find([Path(p) for p in places], rule)
    for text in found.skipped:
        print(" ".join(visible(f"skipped: {text}").splitlines()), file=sys.stderr)
    if not found.records and command != "paper":
        raise UserError(
            f"no finished run in {', '.join(places) or 'no place'}; name run folders or record "
            "files."
        )
    if command != "collect":
        rules.check_coverage(found.records, given.coverage)
        found = replace(found, records=by_total(found.records))
    chosen = "tables" if command == "regrade" else command
    if chosen in DRAWING:
        from trace_bench.results import drawing

        drawing.check_installed()
    return COMMANDS[chosen](found, given.out)


def collect(found: Found, out: Path) -> list[Path]:
    """One line a record, in a fixed order."""
    ordered = sorted(
        found.records,
        key=lambda r: (r.method, training_tasks(r), r.budget, r.seed, str(r.method_settings)),
    )
    write_text(out, "".join(map(as_line, ordered)))
    return [out]


def make_tables(found: Found, out: Path) -> list[Path]:
    from trace_bench.results import plots

    check_comparable(found.records)
    grouped, caption = cells(found.records), describe(found.records, found.skipped)
    budgets = sorted({budget for _, budget in grouped})
    at = {b: [r for r in found.records if r.budget == b] for b in budgets}
    made: list[Table | None] = [
        tables.rollout_scaling(grouped, caption),
        *(tables.comparison(grouped, b, describe(at[b], found.skipped)) for b in budgets),
        *(tables.pairs(grouped, b, describe(at[b], found.skipped)) for b in budgets),
        details.routing(found.records, caption),
        details.selection(found.records, caption),
        details.reliability(grouped, caption),
        details.cost(grouped, caption),
    ]
    written = _write([t for t in made if t is not None], out)
    written += plots.rollout_scaling(grouped, readable(found.records), out / "rollout_scaling")
    if any(r.training for r in found.records):
        curves = out / "learning_curves"
        written += plots.learning_curves(found.records, curves)
    return written


def make_map(found: Found, out: Path) -> list[Path]:
    """Runs without env.train_tasks stand as level lines if their method does not look at training
    tasks; other such runs are left out, and said so."""
    from trace_bench.results import plots

    sized = [r for r in found.records if training_tasks(r)]
    if not sized:
        raise UserError("the map needs runs with env.train_tasks set; all have null.")
    budgets = {r.budget for r in sized}
    level = [r for r in found.records if not training_tasks(r) and r.budget in budgets]
    level = [r for r in level if r.method in style().level]
    if rest := len(found.records) - len(sized) - len(level):
        print(f"left out: {rest} runs without env.train_tasks or of other budgets", file=sys.stderr)
    check_comparable([*sized, *level], free=("env.train_tasks", "env.train_split"))
    caption = describe(sized, found.skipped)
    written = _write([tables.by_training_tasks(sized, level, caption)], out)
    about = readable(sized)
    return written + plots.by_training_tasks(sized, level, about, out / "training_tasks")


def make_capabilities(found: Found, out: Path) -> list[Path]:
    from trace_bench.results import plots

    records = [r for r in found.records if "max_capabilities" in r.method_settings]
    if not records:
        raise UserError("no run of a method with method.max_capabilities (trace, prompt_only).")
    check_comparable(records, free=("method.max_capabilities",))
    caption = describe(records, found.skipped)
    written = _write([tables.by_capabilities(records, caption)], out)
    return written + plots.by_capabilities(records, readable(records), out / "capabilities")


def make_search(found: Found, out: Path) -> list[Path]:
    search.check(found.records)
    return _write([search.table(found.records, describe(found.records, found.skipped))], out)


def paper(found: Found, out: Path) -> list[Path]:
    from trace_bench.results import paper_plots
    from trace_bench.results.paper import paper_tables, reported

    written = _write(paper_tables(found.records, found.skipped), out)
    scaling = reported()["toolsandbox"]["rollouts"]
    written += paper_plots.toolsandbox(scaling, out / "paper_rollout_scaling")
    return written + paper_plots.tau2(reported()["tau2"], 164, out / "paper_tau2")


def _write(made: Sequence[Table], out: Path) -> list[Path]:
    written = []
    for table in made:
        for suffix, text in (
            (".md", table.markdown()),
            (".tex", table.latex()),
            (".csv", table.csv()),
        ):
            path = out / f"{table.name}{suffix}"
            write_text(path, text)
            written.append(path)
    return written


COMMANDS: dict[str, Callable[[Found, Path], list[Path]]] = {
    "collect": collect,
    "tables": make_tables,
    "map": make_map,
    "capabilities": make_capabilities,
    "search": make_search,
    "paper": paper,
}

DRAWING = ("tables", "map", "capabilities", "paper")
"""The commands that also draw figures."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
