"""What each command makes of the runs that were found: tables and figures, or a file of records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.store import write_text
from trace_bench.core.text import visible
from trace_bench.results import details, paper, rules, sizes, tables
from trace_bench.results.captions import describe, readable
from trace_bench.results.compare import Cell, cells, check_same_settings
from trace_bench.results.groups import Group, groups_of, overview
from trace_bench.results.over import Over, training_tasks_figure, training_tasks_table
from trace_bench.results.places import Found
from trace_bench.results.prices import Prices
from trace_bench.results.prices import table as money
from trace_bench.results.records import Record, as_line, training_tasks
from trace_bench.results.style import style
from trace_bench.results.table import write


def usable(found: Found, least: float) -> Found:
    """The runs that tables can show: the infrastructure lost few enough of their held-out episodes,
    and it is known what the agent cost with which they began. The others are named in `skipped`.
    Raises UserError if none is left."""
    why = {id(r): _unusable(r, least) for r in found.records}
    kept = tuple(r for r in found.records if not why[id(r)])
    if not kept:
        rules.check_coverage(found.records, least)
    poor = tuple(f"run {r.fingerprint}: {why[id(r)]}" for r in found.records if why[id(r)])
    return replace(found, records=kept or found.records, skipped=(*found.skipped, *poor))


def _unusable(record: Record, least: float) -> str:
    if record.coverage < least:
        return (
            f"a score for {record.coverage:.0%} of its held-out episodes, less than {least:.0%} "
            "(--coverage)"
        )
    return "it began with an agent of unknown cost" if record.before is None else ""


def collect(found: Found, out: Path) -> list[Path]:
    """One line a record, in a fixed order."""
    ordered = sorted(
        found.records,
        key=lambda r: (r.label, training_tasks(r), r.budget, r.seed, str(r.method_settings)),
    )
    write_text(out, "".join(map(as_line, ordered)))
    return [out]


def make_tables(found: Found, out: Path, prices: Prices | None = None) -> list[Path]:
    """The tables and figures of every group of runs that can stand in one table: in `out` if there
    is one group, else each in a folder of its own and groups.md beside them."""
    groups = groups_of(found.records)
    if len(groups) == 1:
        return _tables(groups[0], found.skipped, out, prices)
    left_out = "".join(f"\n- {visible(text)}" for text in found.skipped)
    about = overview(groups).markdown() + (
        f"\nCould not be used:\n{left_out}\n" if left_out else ""
    )
    write_text(out / "groups.md", about)
    print(f"{len(groups)} groups of runs that cannot stand in one table: see {out / 'groups.md'}",
          file=sys.stderr)  # fmt: skip
    written = [_tables(group, found.skipped, out / group.name, prices) for group in groups]
    return [out / "groups.md", *(path for some in written for path in some)]


def _tables(group: Group, skipped: Sequence[str], out: Path, prices: Prices | None) -> list[Path]:
    from trace_bench.results import plots

    _print_left_out(group)

    def about(records: Sequence[Record]) -> str:
        return " ".join((describe(records, skipped), *group.remarks))

    records = group.records
    grouped, caption = cells(records), about(records)
    budgets = sorted({budget for _, budget in grouped})
    at = {b: about([r for r in records if r.budget == b]) for b in budgets}
    made = [
        tables.rollout_scaling(grouped, caption),
        *(tables.comparison(grouped, b, at[b]) for b in budgets),
        *(tables.pairs(grouped, b, at[b]) for b in budgets),
        details.routing(records, caption),
        details.selection(records, caption),
        details.by_needs(grouped, caption),
        details.reliability(grouped, caption),
        details.cost(grouped, caption),
        details.checklists(grouped, caption),
        None if prices is None else money(grouped, prices, caption),
    ]
    written = write(made, out)
    if (single := plots.single_budget(grouped)) is None:
        written += plots.rollout_scaling(grouped, readable(records), out / "rollout_scaling")
    else:
        written += plots.ranking(grouped, single, readable(records), out / "ranking")
    written += plots.composition(grouped, readable(records), out / "composition")
    return written + plots.learning_curves(records, out / "learning_curves")


def _print_left_out(group: Group) -> None:
    for text in group.left_out:
        print(f"left out: {text}", file=sys.stderr)


AXIS = ("env.train_tasks", "env.train_split")


def make_map(found: Found, out: Path) -> list[Path]:
    """Runs without env.train_tasks stand as level lines if their method does not look at training
    tasks; other such runs are left out, with a line on stderr."""
    sized = [r for r in found.records if training_tasks(r)]
    if not sized:
        raise UserError("the map needs runs with env.train_tasks set; all have null.")
    budgets = {r.budget for r in sized}
    level = [r for r in found.records if not training_tasks(r) and r.budget in budgets]
    level = [r for r in level if r.label in style().level]
    if rest := len(found.records) - len(sized) - len(level):
        print(f"left out: {rest} runs without env.train_tasks or of other budgets", file=sys.stderr)
    check_same_settings([*sized, *level], AXIS)
    (group,) = groups_of([*sized, *level], AXIS)
    _print_left_out(group)
    sized = [r for r in group.records if training_tasks(r)]
    level = [r for r in group.records if not training_tasks(r)]
    caption = " ".join((describe(sized, found.skipped), *group.remarks))
    written = write([training_tasks_table(sized, level, caption)], out)
    about = readable(sized)
    return written + training_tasks_figure(sized, level, about, out / "training_tasks")


def make_capabilities(found: Found, out: Path) -> list[Path]:
    records = tuple(r for r in found.records if "max_capabilities" in r.method_settings)
    if not records:
        raise UserError("no run of a method with method.max_capabilities (trace, prompt_only).")
    across = Over(replace(found, records=records), "method.max_capabilities")
    text = (
        "Success by the number of capabilities that a method may use at most (columns), with 95 % "
        "intervals over tasks and seeds, and how many it found worth using, mean over seeds."
    )
    written = write([across.table("capabilities", text, _used)], out)
    title, label = "Success by how many capabilities are used", "capabilities at most"
    return written + across.draw(title, label, out / "capabilities")


def _used(cell: Cell, most: float) -> str:
    """Capabilities that were trained, or put into the prompt where nothing is trained."""
    used = [min(most, len(r.capabilities)) for r in cell.records]
    return f", {sum(used) / len(used):.1f} used"


def make_over(found: Found, out: Path, settings: str) -> list[Path]:
    """`settings`: that of the axis and, after commas, those that vary along with it."""
    setting, *along = settings.split(",")
    across = Over(found, setting, along)
    name = f"over_{setting.rpartition('.')[2]}"
    named = " and ".join((setting, *along))
    text = f"Success by {named} (columns), with 95 % intervals over tasks and seeds."
    written = write([across.table(name, text)], out)
    return written + across.draw(f"Success by {setting}", setting, out / name)


def make_sizes(found: Found, out: Path) -> list[Path]:
    table, made, about = sizes.make(found)
    return write([table], out) + sizes.draw(made, about, out / "sizes")


def make_search(found: Found, out: Path) -> list[Path]:
    details.check_search(found.records)
    return write([details.search(found.records, describe(found.records, found.skipped))], out)


def make_paper(found: Found, out: Path) -> list[Path]:
    return write(paper.paper_tables(found.records, found.skipped), out) + paper.figures(out)


COMMANDS: dict[str, Callable[[Found, Path], list[Path]]] = {
    "collect": collect,
    "tables": make_tables,
    "map": make_map,
    "capabilities": make_capabilities,
    "search": make_search,
    "sizes": make_sizes,
    "paper": make_paper,
}

AS_RECORDED = ("collect", "sizes")
"""The commands that take each run's own budget, without what was spent before it."""
DRAWING = ("tables", "map", "over", "capabilities", "sizes", "paper")
"""The commands that also draw figures."""
