"""The tables, and the command `tables`, which makes all of every group of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trace_bench.core.store import write_text
from trace_bench.core.text import visible
from trace_bench.core.types import grouped
from trace_bench.results import figures
from trace_bench.results.captions import began_alike, describe, head, readable
from trace_bench.results.cells import Cell, Cells, Difference, by_cell, cells, difference, starred
from trace_bench.results.groups import Group, groups_of, overview
from trace_bench.results.places import COVERAGE, Selection, check_coverage, say
from trace_bench.results.run import Run
from trace_bench.results.statistics import ALPHA, holm, many, mean, pass_hat
from trace_bench.results.table import Table, paragraph, style, write

ABOUT = "about_tables"
PURPOSES = ("analysis", "calibration", "training", "prompt", "validation")


def usable(selection: Selection) -> Selection:
    """The runs that tables can show; the others are named in `skipped`. UserError without any."""
    why = {r.fingerprint: _unusable(r) for r in selection.runs}
    kept = tuple(r for r in selection.runs if not why[r.fingerprint])
    if not kept:
        check_coverage(selection.runs)
    poor = [f"run {fingerprint}: {text}" for fingerprint, text in why.items() if text]
    say("left out", poor)
    return replace(selection, runs=kept or selection.runs, skipped=(*selection.skipped, *poor))


def _unusable(run: Run) -> str:
    if (share := run.coverage) < COVERAGE:
        return f"a score for {share:.0%} of its held-out episodes, less than {COVERAGE:.0%}"
    return "it began with an agent of unknown cost" if run.before is None else ""


def make_tables(selection: Selection, out: Path) -> list[Path]:
    """The tables and figures of every group: in `out` if there is one group, else each in a folder
    of its own and groups.md beside them."""
    groups = groups_of(selection.runs)
    if not figures.installed():
        say("left out", ["the figures, which need the package matplotlib: pip install '.[plots]'"])
    if len(groups) == 1:
        return _tables(groups[0], selection.skipped, out)
    page, about = out / "groups.md", overview(groups).markdown()
    if left_out := "".join(f"\n- {paragraph(visible(text))}" for text in selection.skipped):
        about += f"\nCould not be used:\n{left_out}\n"
    write_text(page, about)
    say(f"{len(groups)} groups of runs that cannot stand in one table", [f"see {page}"])
    written = [_tables(group, selection.skipped, out / group.name) for group in groups]
    return [page, *(path for some in written for path in some)]


def _tables(group: Group, skipped: Sequence[str], out: Path) -> list[Path]:
    say("left out", group.left_out)
    runs = group.runs
    grid, caption, words = cells(runs), head(runs, ABOUT), readable(runs)
    by = {b: [r for r in runs if r.budget == b] for b in sorted({b for _, b in grid})}
    at = {b: head(some, ABOUT) for b, some in by.items()}
    page = [" ".join((describe(runs, skipped), *group.remarks))]
    if len(by) > 1:
        page += [f"At {b} rollouts: {describe(some)}" for b, some in by.items()]
    every_table = [
        rollout_scaling(grid, caption),
        *(comparison(grid, b, text) for b, text in at.items()),
        *(pairs(grid, b, text) for b, text in at.items()),
        routing(runs, caption),
        selection(runs, caption),
        by_needs(grid, caption),
        by_world(grid, caption),
        reliability(grid, caption),
        cost(grid, caption),
    ]
    written = write(every_table, out, ABOUT, page)
    if not figures.installed():
        return written
    if (single := figures.single_budget(grid)) is None:
        return written + figures.rollout_scaling(grid, words, out / "rollout_scaling")
    return written + figures.ranking(grid, single, words, out / "ranking")


def rollout_scaling(grid: Cells, caption: str) -> Table:
    budgets = sorted({budget for _, budget in grid})
    methods = dict.fromkeys(method for method, _ in grid)
    rows = tuple((method, *(success(grid, (method, b)) for b in budgets)) for method in methods)
    text = f"Success by rollout budget with 95 % intervals over tasks and seeds. {caption}"
    return Table("rollout_scaling", text, ("method", *map(str, budgets)), rows)


def success(grid: Cells, key: tuple[str, int]) -> str:
    return grid[key].text if key in grid else "not run"


def comparison(grid: Cells, budget: int, caption: str) -> Table:
    """Every method at one budget against the base agent and the method in focus (TRACE), paired by
    task, with p-values corrected (Holm) for all comparisons of the table."""
    at = {method: cell for (method, b), cell in grid.items() if b == budget}
    control, focus = style().control, style().focus
    against = {other: _against(at, other) for other in (control, focus)}
    raw = {f"{m}/{control}": d.p for m, d in against[control].items()}
    raw |= {f"{m}/{focus}": d.p for m, d in against[focus].items() if f"{focus}/{m}" not in raw}
    corrected = holm(raw)
    others = [other for other in against if other == control or against[other]]
    rows = []
    for method, cell in at.items():
        before = cell.mean(lambda r: r.before or 0)
        row = [method, f"{len(cell.runs)}", f"{cell.mean(lambda r: r.total):.0f}"]
        row[-1] += f" ({before:.0f} before)" if before else ""
        row += [cell.text, f"{cell.mean(lambda r: r.similarity):.3f}"]
        for other in others:
            p = corrected.get(f"{method}/{other}")
            row += ("", "") if p is None else against[other][method].columns(p)
        rows.append(tuple(row))
    all_differences = [d for differences in against.values() for d in differences.values()]
    level = ALPHA / max(1, len(corrected))
    size = max((d.uncertainty.detectable(level) for d in all_differences), default=0.0)
    text = f"All methods at {budget} rollouts. {caption} "
    if corrected:
        text += (
            f"Paired by task; p Holm-corrected over {many(len(corrected), 'comparison')}. "
            f"{_found_from(size)}"
        )
        if control not in at:
            text += f" {control}: as each run's own evaluation has it."
    elif len(at) > 1:
        text += f"The runs' base agents are not one agent; pairs_{budget} compares the rows."
    else:
        text += "One agent, compared with no other."
    header = ("method", "runs", "rollouts", "success", "similarity")
    columns = [name for other in others for name in (f"vs {other}", "p")]
    return Table(f"comparison_{budget}", text, (*header, *columns), tuple(rows))


def _found_from(size: float) -> str:
    """`size`: the smallest difference that the noisiest comparison can show."""
    if size > 1:
        return "The noisiest can show no difference, not even one of 1."
    if size == 0:
        return "Nothing varied between tasks or seeds, so these figures say nothing of others."
    return f"A true difference of {size:.3f} is found with a power of 80 % in the noisiest."


def pairs(grid: Cells, budget: int, caption: str) -> Table:
    """Every method against every other at one budget: row minus column. No rows for one alone."""
    at = {method: cell for (method, b), cell in grid.items() if b == budget}
    names = list(at) if len(at) > 1 else []
    columns = {
        two: {one: difference(at[one], at[two]) for one in names[n + 1 :]}
        for n, two in enumerate(names[:-1])
    }
    text_of, count = starred(columns)
    text = (
        f"Success at {budget} rollouts: row minus column, paired by task. A star: p below 0.05, "
        f"Holm-corrected over all {count} pairs. {caption}"
    )
    rows = tuple(
        (one, *(text_of(two, one) if one in below else "" for two, below in columns.items()))
        for one in names
    )
    return Table(f"pairs_{budget}", text, ("method", *columns), rows)


def _against(at: Mapping[str, Cell], control: str) -> dict[str, Difference]:
    """Each method against `control`, or the base agents that the runs evaluated themselves."""
    if control not in at and control != style().control:
        return {}
    runs = [run for cell in at.values() for run in cell.runs]
    if control not in at and not began_alike(runs):
        return {}  # the runs' own base agents are not one agent
    return {
        m: difference(cell, at.get(control, cell.base)) for m, cell in at.items() if m != control
    }


# -- details: routing, selection, parts of the tasks, trials, cost --------------------------------


def routing(runs: Sequence[Run], caption: str) -> Table:
    """TRACE's success with the router's choice, the oracle's choice and the best single adapter."""

    def row(cell: Cell) -> Iterator[list[str]]:
        figures = [r.routing for r in cell.runs if r.routing is not None]
        columns: list[list[float | None]] = [
            [len(r.adapters) for r in cell.runs],
            [r.mean for r in cell.runs],
            [f.oracle_score.success for f in figures],
            [f.single_score.success for f in figures],
            [f.agreement for f in figures],
            [f.agreement_decisive for f in figures],
        ]  # None: every episode was lost
        scores = [[v for v in column if v is not None] for column in columns]
        yield [f"{mean(values):.3f}" if values else "" for values in scores]

    text = (
        "Routing: success of the routed agent, of the best choice for each task (which looks at "
        "the scores and takes one adapter, so it bounds no route that adds adapters up) and of the "
        "best single adapter; how often the router's choice is as good as the best, on all tasks "
        f"and where it matters. Means over seeds. {caption}"
    )
    header = ("adapters", "routed", "oracle", "single", "agreement", "decisive")
    routed = cells([r for r in runs if r.routing is not None])
    return by_cell("routing", text, header, dict(sorted(routed.items())), row)


def selection(runs: Sequence[Run], caption: str) -> Table:
    """How often runs of a budget selected a capability, and how well labelling runs agreed."""
    focus = sorted((r for r in runs if r.label == style().focus), key=lambda r: r.budget)
    at = grouped(focus, lambda r: r.budget)
    names = sorted({n for runs in at.values() for r in runs for n in (*r.capabilities, *r.votes)})
    rows = [(name, *(_selected(name, runs) for runs in at.values())) for name in names]
    text = (
        "Runs of TRACE in which a capability was selected, by budget; in brackets the share of a "
        "run's labelling runs that found it lacking by the thresholds, mean over all runs. "
        f"{caption}"
    )
    return Table("selection", text, ("capability", *map(str, at)), tuple(rows))


def _selected(name: str, runs: Sequence[Run]) -> str:
    count = sum(name in r.capabilities for r in runs)
    shares = [r.votes[name][0] / r.votes[name][1] for r in runs if r.votes.get(name, (0, 0))[1]]
    return f"{count} of {len(runs)}" + (f" ({mean(shares):.2f})" if shares else "")


def by_needs(grid: Cells, caption: str) -> Table:
    """Success on the tasks that need none, one, or several capabilities, by their suite's word."""
    needs = next((r.needs for cell in grid.values() for r in cell.runs if r.needs), ())
    places = kinds_of(needs)

    def row(cell: Cell) -> Iterator[list[str]]:
        if places:
            yield [cell.on(where).text for where in places.values()]

    text = (
        "Success by how many capabilities a task needs, by its suite's own word, with 95 % "
        f"intervals over tasks and seeds. {caption}"
    )
    header = [f"{n} ({len(places_of)} tasks)" for n, places_of in places.items()]
    return by_cell("needs", text, header, grid, row)


def kinds_of(needs: Sequence[int]) -> dict[str, list[int]]:
    """The places of the tasks that need no, one or several capabilities, where there are some."""
    kinds = ("none", "one", "several")
    places = grouped(range(len(needs)), lambda i: kinds[min(needs[i], 2)])
    return {kind: places[kind] for kind in kinds if kind in places}


def by_world(grid: Cells, caption: str) -> Table:
    """A row for each method and budget, with each world's success and, but for the base agent's own
    runs, its difference to what their base agents score there. No rows where there is one world."""
    worlds = next((r.worlds for cell in grid.values() for r in cell.runs if r.worlds), ())
    places = grouped(range(len(worlds)), lambda i: worlds[i])
    differences: dict[tuple[str, int, str], Difference] = {}
    for (method, budget), cell in grid.items():
        for world, where in places.items():
            one = cell.on(where)
            if method != style().control and one.shares(one.base):
                differences[method, budget, world] = difference(one, one.base)
    corrected = holm({str(key): d.p for key, d in differences.items()})

    def row(cell: Cell) -> Iterator[list[str]]:
        columns: list[str] = []
        for world, where in places.items():
            key = (cell.method, cell.budget, world)
            less = differences[key].columns(corrected[str(key)]) if key in differences else ("", "")
            columns += (cell.on(where).text, *less)
        if places:
            yield columns

    text = (
        "Success in each of several worlds, with 95 % intervals over tasks and seeds, and against "
        "the base agent as each run's own evaluation has it. Paired by task; p Holm-corrected over "
        f"{many(len(differences), 'comparison')}. {caption}"
    )
    header = [
        name
        for world, where in places.items()
        for name in (f"{world} ({many(len(where), 'task')})", f"vs {style().control}", "p")
    ]
    return by_cell("worlds", text, header, grid, row)


def reliability(grid: Cells, caption: str) -> Table:
    """pass^k for k up to 8, mean over seeds, where tasks were tried several times."""
    tried = {key: cell for key, cell in grid.items() if cell.runs[0].passes}
    most = min(8, max((cell.runs[0].trials for cell in tried.values()), default=0))

    def row(cell: Cell) -> Iterator[list[str]]:
        for_k = [[pass_hat(r.passes, k) for r in cell.runs] for k in range(1, most + 1)]
        scores = [[v for v in values if v is not None] for values in for_k]
        yield [f"{mean(values):.3f}" if values else "" for values in scores]

    text = (
        "pass^k: the probability that k trials of a task all succeed, C(c, k) / C(n, k) for c "
        "successes in n trials, mean over tasks and seeds. Trials without a score are left out, "
        f"and with them tasks that have fewer than k, as in tau2-bench's metrics. {caption}"
    )
    return by_cell("reliability", text, [f"k={k}" for k in range(1, most + 1)], tried, row)


def cost(grid: Cells, caption: str) -> Table:
    """Rollouts by purpose, tokens and wall time of the method's phases, means over seeds."""

    def row(cell: Cell) -> Iterator[tuple[str, ...]]:
        phases = [f"method/{p} rollouts" for p in PURPOSES]
        seconds = ("", "")
        if timed := [r.wall_s for r in cell.runs if "method" in r.wall_s]:
            playing = sum(mean([w.get(p, 0.0) for w in timed]) for p in phases)
            seconds = (f"{playing:.1f}", f"{mean([w['method'] for w in timed]) - playing:.1f}")
        yield (
            *(f"{mean([r.rollouts.get(p, 0) for r in cell.runs]):.0f}" for p in PURPOSES),
            f"{cell.budget - cell.mean(lambda r: r.total):.0f}",
            f"{cell.mean(lambda r: r.tokens) / 1000:.0f}",
            *seconds,
        )

    text = (
        "Cost: rollouts by purpose, thousands of tokens in them, seconds of playing them and of "
        f"everything else in the method (updates, labels, checkpoints), means over seeds. {caption}"
    )
    header = (*PURPOSES, "unspent", "kilotokens", "s playing", "s other")
    return by_cell("cost", text, header, grid, row)
