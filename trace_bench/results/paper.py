"""The paper's tables and plots: each figure as reported, the interval that its number of tasks
implies, and our measurement, if there is one.

Reported figures come from results/paper.json (arXiv 2604.05336 and the data behind its plots; those
of CM2, arXiv 2602.12268, have a table of their own). They are of official benchmarks with models of
8B and 30B; ours are of whatever suite the records name, so the two columns are never about the same
thing unless suite and model say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_json
from trace_bench.results.captions import describe
from trace_bench.results.compare import Cell, cells, check_comparable
from trace_bench.results.drawing import doubling, finish, level, line, panels
from trace_bench.results.records import Record
from trace_bench.results.statistics import Interval, wilson_interval
from trace_bench.results.style import OTHER, style
from trace_bench.results.table import Table, estimate

OURS = {"adp": "sft", "awm": "untargeted"}  # the paper's names for what we call otherwise
NOT_RUN = "not run"
_SOURCE = (
    "As reported in arXiv 2604.05336 for Qwen3-30B-A3B, trained and reported on the same tasks, "
    "1 seed, 1 trial"
)


def paper_file() -> Path:
    """Where the reported figures are: beside the package in a checkout."""
    path = Path(__file__).resolve().parents[2] / "results" / "paper.json"
    if not path.is_file():
        raise UserError(f"the paper's figures are missing: no {path}. They are in the repository.")
    return path


def paper_tables(records: Sequence[Record], skipped: Sequence[str] = ()) -> list[Table]:
    """The main tables of both benchmarks and the rollout scaling, measured cells beside them."""
    if records:
        check_comparable(records)
    data = reported()
    found = cells(records)
    largest = max((b for _, b in found), default=0)
    ours = {m: cell for (m, b), cell in found.items() if b == largest}
    note = (
        f"Ours: {describe(records, skipped)} At {largest} rollouts."
        if records
        else "Ours: nothing was measured."
    )
    return [
        _toolsandbox(data, ours, note),
        _tau2(data),
        _scaling(data, found, note),
        *_tau2_details(data["tau2"]),
        _cm2(data["cm2"]),
    ]


def reported() -> Mapping[str, Any]:
    """The figures of results/paper.json."""
    return dict(read_json(paper_file()))


def _implied(solved: float, n: int) -> str:
    interval = wilson_interval(solved, n)
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def _measured(cell: Cell | None) -> str:
    if cell is None:
        return NOT_RUN
    return estimate(cell.interval())


def _toolsandbox(reported: Mapping[str, Any], ours: Mapping[str, Cell], note: str) -> Table:
    data = reported["toolsandbox"]
    rows = []
    for row in data["main"]:
        name, solved = row["method"], row["perfect"]
        rows.append(
            (
                name,
                f"{solved / 129:.3f}",
                _implied(solved, 129),
                f"{row['mean_similarity']:.3f}",
                _measured(ours.get(OURS.get(name, name))),
            )
        )
    caption = (
        "ToolSandbox. Reported: share of 129 official scenarios solved perfectly, trained and "
        "reported on the same tasks, 1 seed, 1 trial; the interval is what 129 tasks imply "
        f"(Wilson). {note}"
    )
    header = ("method", "reported", "implied interval", "reported similarity", "measured (ours)")
    return Table("paper_toolsandbox", caption, header, tuple(rows))


def _tau2(reported: Mapping[str, Any]) -> Table:
    rows = [
        (
            row["method"],
            f"{row['airline'] / 100:.3f}",
            f"{row['retail'] / 100:.3f}",
            f"{row['overall'] / 100:.3f}",
            _implied(row["solved"], 164),
            NOT_RUN,
        )
        for row in reported["tau2"]["main"]
    ]
    caption = (
        "τ²-bench. Reported: pass rate on 50 airline and 114 retail tasks, trained and reported on "
        "the same tasks, 1 seed, 1 trial; the interval is what 164 tasks imply (Wilson). Ours: "
        "nothing was measured."
    )
    header = ("method", "airline", "retail", "overall", "implied interval", "measured (ours)")
    return Table("paper_tau2", caption, header, tuple(rows))


def _scaling(
    reported: Mapping[str, Any], found: Mapping[tuple[str, int], Cell], note: str
) -> Table:
    data = reported["toolsandbox"]["rollouts"]
    rows = []
    for name in ("grpo", "gepa", "trace"):
        for n, budget in enumerate(data["budget"]):
            cell = found.get((name, budget))
            similarity = NOT_RUN if cell is None else f"{cell.similarity().value:.3f}"
            reported_ = f"{data[name][n]:.3f}"
            rows.append((name, str(budget), reported_, similarity, _measured(cell)))
    caption = (
        "Rollout scaling on ToolSandbox. Reported: mean similarity on 129 official scenarios, with "
        "training rollouts counted only; a mean similarity implies no interval by itself. Ours: "
        f"mean similarity and success, all rollouts counted. {note}"
    )
    header = (
        "method", "budget", "reported similarity", "similarity (ours)", "success (ours)",
    )  # fmt: skip
    return Table("paper_rollout_scaling", caption, header, tuple(rows))


def _tau2_details(data: Mapping[str, Any]) -> list[Table]:
    """The paper's figures about τ²-bench: number of capabilities, routing, selection."""
    marked = "τ²-bench, 164 tasks, 1 seed, 1 trial; ours: nothing was measured."
    scaling = data["rollouts"]
    rollouts = [
        (name, f"{budget}", f"{value / 100:.3f}", _implied(value / 100 * 164, 164), NOT_RUN)
        for name in ("grpo", "gepa", "trace")
        for budget, value in zip(scaling["budget"], scaling[name], strict=True)
    ]
    capabilities = [
        (method, number, f"{value / 100:.3f}", _implied(value / 100 * 164, 164), NOT_RUN)
        for method in ("trace", "prompt_only")
        for number, value in data["capabilities"][method].items()
    ]
    routing = data["routing"]
    routed = [
        (f"{n}", f"{oracle}", f"{right}", f"{right / oracle:.3f}", _implied(right, oracle), NOT_RUN)
        for n, oracle, right in zip(
            routing["capabilities"], routing["oracle_tasks"], routing["router_correct"], strict=True
        )
    ]
    selection = data["selection"]
    chosen = [
        (s["name"], f"{s['runs']} of {selection['runs']}", f"{s['median_tasks']}", kind, NOT_RUN)
        for kind in ("selected", "rejected")
        for s in selection[kind]
    ]
    measured = "measured (ours)"
    share = ("method", "budget", "reported", "implied interval", measured)
    return [
        Table("paper_tau2_rollout_scaling", f"Rollout scaling. {marked}", share, tuple(rollouts)),
        Table(
            "paper_tau2_capabilities",
            f"Pass rate by number of capabilities. {marked} {data['capabilities']['note']}.",
            ("method", "capabilities", "reported", "implied interval", measured),
            tuple(capabilities),
        ),
        Table(
            "paper_tau2_routing",
            "Tasks that some adapter solves (oracle) and those that the router sent to such a one. "
            f"{marked}",
            ("capabilities", "oracle tasks", "routed right", "share", "implied interval", measured),
            tuple(routed),
        ),
        Table(
            "paper_tau2_selection",
            f"Labelling runs in which a capability passed, of {selection['runs']}, over "
            f"{selection['failures']} failed trajectories. {marked}",
            ("capability", "runs", "median tasks", "verdict", measured),
            tuple(chosen),
        ),
    ]


def _cm2(data: Mapping[str, Any]) -> Table:
    """CM2's main table, one line for each agent and benchmark."""
    names = {
        "airline": "τ²-bench airline", "retail": "τ²-bench retail", "telecom": "τ²-bench telecom",
        "bfcl_multi_turn": "BFCL-V4 multi-turn", "web_search": "BFCL-V4 web search",
        "toolsandbox": "ToolSandbox",
    }  # fmt: skip
    rows = []
    for row in data["main"]:
        for key, name in names.items():
            share, tasks = row[key] / 100, data["tasks"].get(key)
            implied = "" if tasks is None else _implied(share * tasks, tasks)
            rows.append((row["agent"], name, f"{share:.3f}", implied, NOT_RUN))
    caption = (
        f"{data['paper']}, as reported, without seeds: pass rate (τ²-bench, mean of 4 runs), "
        "accuracy (BFCL-V4) and mean similarity (ToolSandbox). The interval is what the "
        "number of tasks implies for one run (Wilson). Ours: nothing was measured."
    )
    header = ("agent", "benchmark", "reported", "implied interval", "measured (ours)")
    return Table("paper_cm2", caption, header, tuple(rows))


def _draw_scaling(reported: Mapping[str, Any], path: Path) -> list[Path]:
    """Mean similarity over the number of training rollouts."""
    figure, ((axes,),) = panels(1, 1, (5.4, 3.8))
    constant = reported["base"]
    level(axes, style().look("base"), Interval(constant, constant, constant))
    for method in ("grpo", "gepa", "trace"):
        points = zip(reported["budget"], reported[method], strict=True)
        line(axes, style().look(method), [(b, Interval(v, v, v)) for b, v in points])
    doubling(axes, reported["budget"], "training rollouts")
    axes.set_ylabel("mean similarity")
    axes.legend()
    caption = f"{_SOURCE}, 129 official scenarios. A mean similarity implies no interval by itself."
    return finish(figure, "Rollout scaling on ToolSandbox, as reported", caption, path)


def _draw_tau2(data: Mapping[str, Any], tasks: int, path: Path) -> list[Path]:
    """Pass rate over the budget and over the number of capabilities, and the router against the
    oracle."""
    figure, ((left, middle, right),) = panels(1, 3, (9.6, 3.4))

    def implied(percent: float) -> Interval:
        return wilson_interval(percent / 100 * tasks, tasks)

    scaling = data["rollouts"]
    for method in ("grpo", "gepa", "trace"):
        points = zip(scaling["budget"], scaling[method], strict=True)
        line(left, style().look(method), [(b, implied(v)) for b, v in points])
    doubling(left, scaling["budget"], "training rollouts")
    for method in ("prompt_only", "trace"):
        by_number = data["capabilities"][method]
        line(middle, style().look(method), [(int(n), implied(v)) for n, v in by_number.items()])
    doubling(middle, [1, 2, 4, 8, 16], "capabilities")
    _draw_routing(right, data["routing"])
    for axes, title in ((left, "Budget"), (middle, "Capabilities"), (right, "Routing")):
        axes.set_title(title)
        axes.legend()
    for axes in (left, middle):
        axes.set_ylabel("pass rate")
        axes.set_ylim(0, 0.75)
    right.set_ylabel(f"tasks, of {tasks}")
    caption = f"{_SOURCE}. Bars are 95 % intervals that {tasks} tasks imply (Wilson)."
    return finish(figure, "τ²-bench, as reported", caption, path)


def _draw_routing(axes: Any, routing: Mapping[str, Any]) -> None:
    shown = {"oracle_tasks": ("some adapter solves it", "D", "--"),
             "router_correct": ("routed to such a one", "o", "-")}  # fmt: skip
    for name, (label, marker, dashes) in shown.items():
        axes.plot(
            routing["capabilities"], routing[name], marker=marker, linestyle=dashes, color=OTHER,
            label=label, linewidth=1.4, markersize=6,
        )  # fmt: skip
    doubling(axes, routing["capabilities"], "capabilities")
    axes.set_ylim(0, None)


def figures(out: Path) -> list[Path]:
    """The paper's plots, with the intervals that their numbers of tasks imply. Nothing measured is
    in them: another world and another model belong on other axes."""
    data = reported()
    written = _draw_scaling(data["toolsandbox"]["rollouts"], out / "paper_rollout_scaling")
    return written + _draw_tau2(data["tau2"], 164, out / "paper_tau2")
