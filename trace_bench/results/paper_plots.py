"""The paper's figures as reported, with the intervals that their numbers of tasks imply. Nothing
measured here is in them: another world and another model belong on other axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_bench.results.drawing import doubling, finish, level, line, panels
from trace_bench.results.statistics import Interval, wilson_interval
from trace_bench.results.style import OTHER, style

_SOURCE = (
    "As reported in arXiv 2604.05336 for Qwen3-30B-A3B, trained and reported on the same tasks, "
    "1 seed, 1 trial"
)


def toolsandbox(reported: Mapping[str, Any], path: Path) -> list[Path]:
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


def tau2(data: Mapping[str, Any], tasks: int, path: Path) -> list[Path]:
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
    _routing(right, data["routing"])
    for axes, title in ((left, "Budget"), (middle, "Capabilities"), (right, "Routing")):
        axes.set_title(title)
        axes.legend()
    for axes in (left, middle):
        axes.set_ylabel("pass rate")
        axes.set_ylim(0, 0.75)
    right.set_ylabel(f"tasks, of {tasks}")
    caption = f"{_SOURCE}. Bars are 95 % intervals that {tasks} tasks imply (Wilson)."
    return finish(figure, "τ²-bench, as reported", caption, path)


def _routing(axes: Any, routing: Mapping[str, Any]) -> None:
    shown = {"oracle_tasks": ("some adapter solves it", "D", "--"),
             "router_correct": ("routed to such a one", "o", "-")}  # fmt: skip
    for name, (label, marker, dashes) in shown.items():
        axes.plot(
            routing["capabilities"], routing[name], marker=marker, linestyle=dashes, color=OTHER,
            label=label, linewidth=1.4, markersize=6,
        )  # fmt: skip
    doubling(axes, routing["capabilities"], "capabilities")
    axes.set_ylim(0, None)
