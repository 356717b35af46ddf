"""Figures in one look: colours that the colour-blind can tell apart (Okabe and Ito), a marker for
each method as well, sizes that stay legible in a printed column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.results.compare import Cell, cells
from trace_bench.results.records import Record

COLOURS = {
    "base": "#555555",
    "sft": "#999933",
    "untargeted": "#56B4E9",
    "grpo": "#0072B2",
    "gepa": "#E69F00",
    "prompt_only": "#CC79A7",
    "single_capability": "#009E73",
    "trace": "#D55E00",
}
MARKERS = dict(zip(COLOURS, "sXv^DPo*", strict=True))
_OTHER = "#000000"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "svg.hashsalt": "trace_bench",
            "figure.dpi": 150,
        }
    )
    return pyplot


def _save(figure: Any, path: Path) -> list[Path]:
    """PNG and SVG, without a date in them: the same records give the same files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = [path.with_suffix(".png"), path.with_suffix(".svg")]
    figure.savefig(out[0], bbox_inches="tight", metadata={"Software": None})
    figure.savefig(out[1], bbox_inches="tight", metadata={"Date": None, "Creator": None})
    return out


def rollout_scaling(found: Mapping[tuple[str, int], Cell], title: str, path: Path) -> list[Path]:
    """Success over the rollout budget, a line a method, bars for the intervals."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6.4, 4.0))
    budgets = sorted({budget for _, budget in found})
    methods = list(dict.fromkeys(method for method, _ in found))
    for n, method in enumerate(methods):
        own = [(b, found[method, b].interval()) for b in budgets if (method, b) in found]
        shift = 1 + 0.012 * (n - len(methods) / 2)  # so that the bars do not lie on each other
        axes.errorbar(
            [b * shift for b, _ in own],
            [i.value for _, i in own],
            yerr=[[i.value - i.low for _, i in own], [i.high - i.value for _, i in own]],
            label=method,
            color=COLOURS.get(method, _OTHER),
            marker=MARKERS.get(method, "."),
            markersize=6,
            linewidth=1.4,
            elinewidth=0.8,
            capsize=2,
            linestyle="--" if method == "base" else "-",
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(b) for b in budgets])
    axes.minorticks_off()
    axes.set_xlabel("rollout budget")
    axes.set_ylabel("success on held-out tasks")
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    saved = _save(figure, path)
    pyplot.close(figure)
    return saved


def by_training_tasks(records: Sequence[Record], title: str, path: Path) -> list[Path]:
    """One panel a budget: success over the number of training tasks, a line a method."""
    pyplot = _pyplot()
    budgets = sorted({r.budget for r in records})
    figure, panels = pyplot.subplots(
        1, len(budgets), figsize=(2.4 * len(budgets) + 1, 3.0), sharey=True, squeeze=False
    )
    for axes, budget in zip(panels[0], budgets, strict=True):
        _panel(axes, [r for r in records if r.budget == budget])
        axes.set_title(f"{budget} rollouts", fontsize=9)
        axes.set_xlabel("training tasks")
    panels[0][0].set_ylabel("success on held-out tasks")
    panels[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(title, fontsize=9, y=1.02)
    saved = _save(figure, path)
    pyplot.close(figure)
    return saved


def _panel(axes: Any, records: Sequence[Record]) -> None:
    sizes = sorted({int(r.settings["env.train_tasks"]) for r in records})
    for method in sorted({r.method for r in records}):
        points = []
        for size in sizes:
            own = [
                r
                for r in records
                if r.method == method and int(r.settings["env.train_tasks"]) == size
            ]
            if own:
                points.append((size, next(iter(cells(own).values())).interval()))
        axes.errorbar(
            [s for s, _ in points],
            [i.value for _, i in points],
            yerr=[[i.value - i.low for _, i in points], [i.high - i.value for _, i in points]],
            label=method,
            color=COLOURS.get(method, _OTHER),
            marker=MARKERS.get(method, "."),
            markersize=5,
            linewidth=1.4,
            elinewidth=0.8,
            capsize=2,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(s) for s in sizes], fontsize=7)
    axes.minorticks_off()
