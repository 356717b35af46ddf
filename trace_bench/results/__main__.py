"""`python -m trace_bench.results`: tables and figures from finished runs.

    collect PLACES... --out FILE     records of run folders in one small file that can be committed
    tables PLACES... --out FOLDER    tables (Markdown, LaTeX, CSV) and figures (PNG, SVG)
    map PLACES... --out FOLDER       the same over the number of training tasks (env.train_tasks)
    paper [PLACES...] --out FOLDER   the paper's tables with implied intervals, ours beside them

A place is a run folder, a folder with run folders somewhere below it, or a file of records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trace_bench.errors import UserError
from trace_bench.results import tables
from trace_bench.results.compare import cells, check_comparable
from trace_bench.results.records import Found, as_line, find
from trace_bench.results.tables import Table, describe
from trace_bench.store import write_text


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m trace_bench.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["collect", "tables", "map", "paper"])
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        found = find(given.places)
        for text in found.skipped:
            print(f"skipped: {text}", file=sys.stderr)
        if not found.records and given.command != "paper":
            raise UserError(
                f"no finished run in {', '.join(map(str, given.places)) or 'no place'}; name run "
                "folders or record files."
            )
        written = {"collect": collect, "tables": make_tables, "map": make_map, "paper": paper}[
            given.command
        ](found, given.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(path)
    return 0


def collect(found: Found, out: Path) -> list[Path]:
    """One line a record, in a fixed order."""
    ordered = sorted(
        found.records,
        key=lambda r: (r.method, r.settings.get("env.train_tasks") or 0, r.budget, r.seed),
    )
    write_text(out, "".join(json.dumps(as_line(r), sort_keys=True) + "\n" for r in ordered))
    return [out]


def make_tables(found: Found, out: Path) -> list[Path]:
    from trace_bench.results import plots

    check_comparable(found.records)
    grouped, caption = cells(found.records), describe(found.records, found.skipped)
    budgets = sorted({budget for _, budget in grouped})
    made: list[Table | None] = [
        tables.rollout_scaling(grouped, caption),
        *(tables.comparison(grouped, budget, caption) for budget in budgets),
        tables.routing(found.records, caption),
        tables.selection(found.records, caption),
        tables.cost(grouped, caption),
    ]
    written = _write([t for t in made if t is not None], out)
    title = caption.split(". ")[0]
    return written + plots.rollout_scaling(grouped, title, out / "rollout_scaling")


def make_map(found: Found, out: Path) -> list[Path]:
    from trace_bench.results import plots

    check_comparable(found.records, free=("env.train_tasks",))
    if any(r.settings["env.train_tasks"] is None for r in found.records):
        raise UserError("the map needs runs with env.train_tasks set; some have null.")
    caption = describe(found.records, found.skipped)
    written = _write([tables.by_training_tasks(found.records, caption)], out)
    title = caption.split(". ")[0]
    return written + plots.by_training_tasks(found.records, title, out / "training_tasks")


def paper(found: Found, out: Path) -> list[Path]:
    from trace_bench.results.paper import paper_tables

    return _write(paper_tables(found.records), out)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
