"""The paper's tables and plots: each figure as reported, with the interval that its number of tasks
implies: `python paper.py [FOLDER]`.

Reported figures come from paper.json beside this file (arXiv 2604.05336 and the data behind
its plots; those of CM2, arXiv 2602.12268), of official benchmarks with models of 8B and 30B."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.store import read_json
from trace_bench.core.summary import Interval
from trace_bench.results.figures import doubling, finish, level, line, panels
from trace_bench.results.statistics import wilson_interval
from trace_bench.results.table import OTHER, Table, style, write

NOT_RUN = "not run"
_LINES = ("grpo", "gepa", "trace")  # of the plots over the budget
_SOURCE = (
    "As reported in arXiv 2604.05336 for Qwen3-30B-A3B, trained and reported on the same tasks, "
    "1 seed, 1 trial"
)


def make(out: Path) -> list[Path]:
    data = read_json(Path(__file__).with_name("paper.json"))
    phone, tau2 = data["toolsandbox"], data["tau2"]
    tables = [_toolsandbox(phone["main"]), _scaling(phone["rollouts"])]
    written = write([*tables, *_tau2(tau2), _cm2(data["cm2"])], out)
    written += _draw_scaling(phone["rollouts"], out / "paper_rollout_scaling")
    return written + _draw_tau2(tau2, 164, out / "paper_tau2")


def _implied(solved: float, n: int) -> str:
    interval = wilson_interval(solved, n)
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def _by_budget(data: Mapping[str, Any], name: str) -> list[tuple[int, float]]:
    return [*zip(data["budget"], data[name], strict=True)]


def _toolsandbox(main: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for row in main:
        solved, similarity = row["perfect"], f"{row['mean_similarity']:.3f}"
        rows.append((row["method"], f"{solved / 129:.3f}", _implied(solved, 129), similarity))
    caption = (
        "ToolSandbox. Reported: share of 129 official scenarios solved perfectly, trained and "
        "reported on the same tasks, 1 seed, 1 trial; the interval is what 129 tasks imply "
        "(Wilson). Ours: nothing was measured."
    )
    header = ("method", "reported", "implied interval", "reported similarity")
    return _not_run("paper_toolsandbox", caption, header, rows)


def _scaling(data: Mapping[str, Any]) -> Table:
    rows = tuple(
        (name, f"{budget}", f"{value:.3f}", NOT_RUN, NOT_RUN)
        for name in _LINES
        for budget, value in _by_budget(data, name)
    )
    caption = (
        "Rollout scaling on ToolSandbox. Reported: mean similarity on 129 official scenarios, with "
        "training rollouts counted only; a mean similarity implies no interval by itself. Ours: "
        "mean similarity and success, all rollouts counted. Ours: nothing was measured."
    )
    header = ("method", "budget", "reported similarity", "similarity (ours)", "success (ours)")
    return Table("paper_rollout_scaling", caption, header, rows)


def _tau2(data: Mapping[str, Any]) -> list[Table]:
    marked = "τ²-bench, 164 tasks, 1 seed, 1 trial; ours: nothing was measured."

    def share(percent: float) -> tuple[str, str]:
        return f"{percent / 100:.3f}", _implied(percent / 100 * 164, 164)

    domains = ("airline", "retail", "overall")
    main = _not_run(
        "paper_tau2",
        "τ²-bench. Reported: pass rate on 50 airline and 114 retail tasks, trained and "
        "reported on the same tasks, 1 seed, 1 trial; the interval is what 164 tasks imply "
        "(Wilson). Ours: nothing was measured.",
        ("method", *domains, "implied interval"),
        [
            (row["method"], *(f"{row[d] / 100:.3f}" for d in domains), _implied(row["solved"], 164))
            for row in data["main"]
        ],
    )
    scaling = _not_run(
        "paper_tau2_rollout_scaling",
        f"Rollout scaling. {marked}",
        ("method", "budget", "reported", "implied interval"),
        [
            (name, f"{budget}", *share(value))
            for name in _LINES
            for budget, value in _by_budget(data["rollouts"], name)
        ],
    )
    capabilities = _not_run(
        "paper_tau2_capabilities",
        f"Pass rate by number of capabilities. {marked} {data['capabilities']['note']}.",
        ("method", "capabilities", "reported", "implied interval"),
        [
            (method, number, *share(value))
            for method in ("trace", "prompt_only")
            for number, value in data["capabilities"][method].items()
        ],
    )
    routing, selection = data["routing"], data["selection"]
    columns = (routing[name] for name in ("capabilities", "oracle_tasks", "router_correct"))
    routed = _not_run(
        "paper_tau2_routing",
        "Tasks that some adapter solves (oracle) and those that the router sent to such a one. "
        f"{marked}",
        ("capabilities", "oracle tasks", "routed right", "share", "implied interval"),
        [
            (f"{n}", f"{oracle}", f"{right}", f"{right / oracle:.3f}", _implied(right, oracle))
            for n, oracle, right in zip(*columns, strict=True)
        ],
    )
    selected = _not_run(
        "paper_tau2_selection",
        f"Labelling runs in which a capability passed, of {selection['runs']}, over "
        f"{selection['failures']} failed trajectories. {marked}",
        ("capability", "runs", "median tasks", "verdict"),
        [
            (s["name"], f"{s['runs']} of {selection['runs']}", f"{s['median_tasks']}", kind)
            for kind in ("selected", "rejected")
            for s in selection[kind]
        ],
    )
    return [main, scaling, capabilities, routed, selected]


def _not_run(
    name: str, caption: str, header: Sequence[str], rows: Sequence[tuple[str, ...]]
) -> Table:
    marked = tuple((*row, NOT_RUN) for row in rows)
    return Table(name, caption, (*header, "measured (ours)"), marked)


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
            rows.append((row["agent"], name, f"{share:.3f}", implied))
    caption = (
        f"{data['paper']}, as reported, without seeds: pass rate (τ²-bench, mean of 4 runs), "
        "accuracy (BFCL-V4) and mean similarity (ToolSandbox). The interval is what the "
        "number of tasks implies for one run (Wilson). Ours: nothing was measured."
    )
    return _not_run(
        "paper_cm2", caption, ("agent", "benchmark", "reported", "implied interval"), rows
    )


def _draw_scaling(reported: Mapping[str, Any], path: Path) -> list[Path]:
    figure, ((axes,),) = panels(1, 1, (5.4, 3.8))
    constant = reported["base"]
    level(axes, style().methods["base"], Interval(constant, constant, constant))
    for method in _LINES:
        points = [(b, Interval(v, v, v)) for b, v in _by_budget(reported, method)]
        line(axes, style().methods[method], points)
    doubling(axes, reported["budget"], "training rollouts")
    axes.set_ylabel("mean similarity")
    axes.legend()
    caption = f"{_SOURCE}, 129 official scenarios. A mean similarity implies no interval by itself."
    return finish(figure, "Rollout scaling on ToolSandbox, as reported", caption, path)


def _draw_tau2(data: Mapping[str, Any], tasks: int, path: Path) -> list[Path]:
    """Pass rate over budget and number of capabilities, and the router against the oracle."""
    figure, ((left, middle, right),) = panels(1, 3, (9.6, 3.4))

    def implied(percent: float) -> Interval:
        return wilson_interval(percent / 100 * tasks, tasks)

    scaling = data["rollouts"]
    for method in _LINES:
        points = [(b, implied(v)) for b, v in _by_budget(scaling, method)]
        line(left, style().methods[method], points)
    doubling(left, scaling["budget"], "training rollouts")
    for method in ("prompt_only", "trace"):
        by_number = data["capabilities"][method]
        line(middle, style().methods[method], [(int(n), implied(v)) for n, v in by_number.items()])
    doubling(middle, [1, 2, 4, 8, 16], "capabilities")
    routing = data["routing"]
    for name, label, marker, dashes in (
        ("oracle_tasks", "some adapter solves it", "D", "--"),
        ("router_correct", "routed to such a one", "o", "-"),
    ):
        right.plot(
            routing["capabilities"], routing[name], marker=marker, linestyle=dashes, color=OTHER,
            label=label, linewidth=1.4, markersize=6,
        )  # fmt: skip
    doubling(right, routing["capabilities"], "capabilities")
    for axes, title, label, top in (
        (left, "Budget", "pass rate", 0.75),
        (middle, "Capabilities", "pass rate", 0.75),
        (right, "Routing", f"tasks, of {tasks}", None),
    ):
        axes.set_title(title)
        axes.legend()
        axes.set_ylabel(label)
        axes.set_ylim(0, top)
    caption = f"{_SOURCE}. Bars are 95 % intervals that {tasks} tasks imply (Wilson)."
    return finish(figure, "τ²-bench, as reported", caption, path)


if __name__ == "__main__":
    for path in make(Path(*sys.argv[1:2])):
        print(path)
    sys.exit()
