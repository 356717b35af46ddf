"""Success over the values of one setting, or over the number of training tasks: tables, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.summary import Interval
from trace_bench.results import figures
from trace_bench.results.captions import began_alike, describe, head, readable
from trace_bench.results.compare import Cell, Cells, cells, check_same_settings
from trace_bench.results.groups import groups_of
from trace_bench.results.places import Found, say
from trace_bench.results.records import Record, flat_settings, training_tasks
from trace_bench.results.table import Table, style, write
from trace_bench.results.tables import success


class Over:
    """Runs along the axis `setting`. Those with a number there are the points; others of the same
    budgets stand as levels. `along`: settings that vary with the first. Raises UserError."""

    def __init__(self, found: Found, setting: str, along: Sequence[str] = ()) -> None:
        free = (setting, *along)
        known = {key for record in found.records for key in flat_settings(record)}
        for name in free:
            if name not in known:
                raise unknown("setting", name, sorted(known), "--setting")
        where = {r.fingerprint: _number(flat_settings(r).get(setting)) for r in found.records}
        budgets = {r.budget for r in found.records if where[r.fingerprint] is not None}
        records = [r for r in found.records if r.budget in budgets]
        values = sorted({v for v in where.values() if v is not None})
        if len(values) < 2:
            raise UserError(
                f"--setting {setting}: these runs have {values or 'no number'} there; needed: runs "
                "with at least two values of it. Name more runs, or another setting."
            )
        if rest := len(found.records) - len(records):
            say("left out", [f"{rest} runs of other budgets"])
        group, *others = groups_of(records, free)
        if others:
            check_same_settings(records, free)
        say("left out", group.left_out)
        self.records = group.records
        self.about = " ".join((describe(self.records, found.skipped), *group.remarks))
        self.cells = {
            v: cells([r for r in self.records if where[r.fingerprint] == v]) for v in values
        }
        self.flat = cells([r for r in self.records if where[r.fingerprint] is None])

    def table(
        self, name: str, text: str, note: Callable[[Cell, float], str] = lambda *_: ""
    ) -> Table:
        """A row a method and budget, a column a value. `note`: words behind a number."""
        rows = []
        for key in cells(self.records):
            notes = [note(c[key], v) if key in c else "" for v, c in self.cells.items()]
            row = [success(c, key) + n for c, n in zip(self.cells.values(), notes, strict=True)]
            row += [success(self.flat, key)] if self.flat else []
            rows.append((key[0], f"{key[1]}", *row))
        columns = [*(f"{v:g}" for v in self.cells), *(["not set"] if self.flat else [])]
        caption = f"{text} {head(self.records, f'about_{name}')}"
        return Table(name, caption, ("method", "budget", *columns), tuple(rows))

    def levels(self) -> list[tuple[str, Interval]]:
        """Runs without the setting, and the base agent where all began with the same one."""
        control, every = style().control, cells(self.records)
        models = {str(_model(record)) for record in self.records}
        alike = began_alike(self.records) and len(models) == 1
        base = [(control, next(iter(every.values())).base.interval())] if alike else []
        return base + [(k[0], c.interval()) for k, c in self.flat.items() if k[0] != control]

    def draw(self, title: str, label: str, path: Path) -> list[Path]:
        """A line a method and budget; a band for each of the levels."""
        figure, ((axes,),) = figures.panels(1, 1, (5.4, 4.0))
        control, every = style().control, cells(self.records)
        keys = [key for key in every if any(key in c for c in self.cells.values())]
        lines = [
            (key[0], [(v, c[key].interval()) for v, c in self.cells.items() if key in c])
            for key in keys
        ]
        looks = style().looks([control, *(m for m, _ in (*self.flat, *keys))])
        figures.chart(axes, looks, self.levels(), lines, shifted=False)
        figures.bounds(axes, self.records[0].floors)
        scale = figures.doubling if min(self.cells) > 0 else figures.evenly
        scale(axes, list(self.cells), label)
        axes.set_ylabel(figures.SUCCESS)
        axes.legend(**figures.BESIDE)
        caption = f"{readable(self.records)}; {figures.INTERVALS}."
        return figures.finish(figure, title, caption, path)


def _model(record: Record) -> list[tuple[str, object]]:
    return sorted((k, v) for k, v in record.settings.items() if k.startswith("model."))


def _number(value: object) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def make_over(found: Found, out: Path, setting: str) -> list[Path]:
    """`setting`: that of the axis and, after commas, those that vary along with it."""
    axis, *along = setting.split(",")
    across = Over(found, axis, along)
    name = f"over_{axis.rpartition('.')[2]}"
    named = " and ".join((axis, *along))
    text = f"Success by {named} (columns), with 95 % intervals over tasks and seeds."
    written = write([across.table(name, text)], out, f"about_{name}", across.about)
    return written + across.draw(f"Success by {axis}", axis, out / name)


def make_capabilities(found: Found, out: Path) -> list[Path]:
    records = tuple(r for r in found.records if "max_capabilities" in r.method_settings)
    if not records:
        raise UserError("no run of a method with method.max_capabilities (trace, prompt_only).")
    across = Over(replace(found, records=records), "method.max_capabilities")
    text = (
        "Success by the number of capabilities that a method may use at most (columns), with 95 % "
        "intervals over tasks and seeds, and how many it found worth using, mean over seeds."
    )
    made = across.table("capabilities", text, _used)
    written = write([made], out, f"about_{made.name}", across.about)
    title, label = "Success by how many capabilities are used", "capabilities at most"
    return written + across.draw(title, label, out / "capabilities")


def _used(cell: Cell, most: float) -> str:
    """Capabilities that were trained, or put into the prompt where nothing is trained."""
    return f", {cell.mean(lambda r: min(most, len(r.capabilities))):.1f} used"


# -- over the number of training tasks ------------------------------------------------------------

AXIS = ("env.train_tasks", "env.train_split")


def make_map(found: Found, out: Path) -> list[Path]:
    """Runs without env.train_tasks stand as level lines if their method looks at none."""
    sized = [r for r in found.records if training_tasks(r)]
    if not sized:
        raise UserError("the map needs runs with env.train_tasks set; all have null.")
    budgets, level = {r.budget for r in sized}, style().level
    others = [r for r in found.records if not training_tasks(r)]
    records = [*sized, *(r for r in others if r.budget in budgets and r.label in level)]
    if rest := len(found.records) - len(records):
        say("left out", [f"{rest} runs without env.train_tasks or of other budgets"])
    check_same_settings(records, AXIS)
    (group,) = groups_of(records, AXIS)
    say("left out", group.left_out)
    sized = [r for r in group.records if training_tasks(r)]
    flat = [r for r in group.records if not training_tasks(r)]
    numbers = sorted({training_tasks(r) for r in sized})
    by = {n: cells([r for r in sized if training_tasks(r) == n]) for n in numbers}
    seeds = f"{len({r.seed for r in flat})} seeds"
    page = "about_training_tasks"
    made = _map_table(by, cells(flat), seeds, head(sized, page))
    about = " ".join((describe(sized, found.skipped), *group.remarks))
    drawn = _map_figure(by, cells(flat), seeds, sized, out / "training_tasks")
    return write([made], out, page, about) + drawn


def _budgets(by: Mapping[int, Cells]) -> list[int]:
    return sorted({budget for found in by.values() for _, budget in found})


def _map_table(by: Mapping[int, Cells], level: Cells, seeds: str, caption: str) -> Table:
    """One row a number and method; at the end the `level` ones, which look at none."""
    budgets, rows = _budgets(by), []
    for number, found in (*by.items(), ("any", level)):
        for method in dict.fromkeys(m for m, _ in found):
            rows.append((f"{number}", method, *(success(found, (method, b)) for b in budgets)))
    text = (
        "Success by number of training tasks and rollout budget, with 95 % intervals over tasks "
        f"and seeds. {caption}"
    )
    if level:
        text += f" The methods at `any` do not look at the training tasks ({seeds})."
    return Table("training_tasks", text, ("tasks", "method", *map(str, budgets)), tuple(rows))


def _map_figure(
    by: Mapping[int, Cells], level: Cells, seeds: str, sized: Sequence[Record], path: Path
) -> list[Path]:
    """One panel a budget, a line a method; `level` ones see no training tasks: a band."""
    budgets = _budgets(by)
    size = (max(2.3 * len(budgets) + 1.2, 6.6), 3.6)
    figure, (row,) = figures.panels(1, len(budgets), size, sharey=True)
    methods = sorted({m for found in by.values() for m, _ in found}, key=style().place)
    looks = style().looks([*methods, *(m for m, _ in level)])
    for n, (axes, budget) in enumerate(zip(row, budgets, strict=True)):
        levels = [(m, cell.interval()) for (m, b), cell in level.items() if b == budget]
        lines = [
            (m, [(t, c[m, budget].interval()) for t, c in by.items() if (m, budget) in c])
            for m in methods
        ]
        figures.chart(axes, looks, levels, lines)
        figures.bounds(axes, sized[0].floors, named=n == 0)
        figures.doubling(axes, list(by), "training tasks")
        axes.set_title(f"{budget:,} rollouts")
    row[0].set_ylabel(figures.SUCCESS)
    row[-1].legend(**figures.BESIDE)
    title = "Success by number of training tasks and rollout budget"
    caption = f"{readable(sized)}; {figures.INTERVALS}."
    if level:
        caption += f" Bands: methods that see no training task, {seeds}."
    return figures.finish(figure, title, caption, path)
