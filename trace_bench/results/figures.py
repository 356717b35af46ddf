"""The figures: one look for all of them, and those of measured runs. The palette is safe for the
colour-blind (Okabe and Ito); series differ in marker and dash, too. Title and caption say what is
shown and what the intervals are, so that a figure can be read away from its page."""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trace_bench.core.store import write_bytes
from trace_bench.core.summary import Interval
from trace_bench.results.captions import began_alike
from trace_bench.results.cells import Cell, Cells
from trace_bench.results.table import Look, style

Points = Sequence[tuple[float, Interval]]
SUCCESS = "success on held-out tasks"
INTERVALS = "bars and bands are 95 % intervals over tasks and seeds"

BESIDE: Any = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
"""Where a legend stands to the right of its panel."""

_BOUNDS = {"reference": "reference solutions", "idle": "idle agent", "random": "random agent"}
_BOUND = "#555555"
_SMALL = 7
_SETTINGS: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "trace_bench",
    "figure.dpi": 150,
}


def installed() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def panels(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Any, Any]:
    """A figure of `size` inches and its panels [rows, columns]."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(_SETTINGS)
    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, **shared)


def plain(text: str) -> str:
    """A text that matplotlib shows as it is: between dollar signs it would read formulas."""
    return text.replace("$", r"\$")


def line(axes: Any, look: Look, points: Points) -> None:
    """One method's values with their intervals."""
    axes.errorbar(
        [x for x, _ in points], [i.value for _, i in points],
        yerr=[[i.value - i.low for _, i in points], [i.high - i.value for _, i in points]],
        label=plain(look.label), color=look.colour, marker=look.marker,
        markersize=6, linewidth=1.4, elinewidth=0.8, capsize=2,
    )  # fmt: skip


def lying(axes: Any, look: Look, place: float, interval: Interval) -> None:
    """A value with its interval in a row of its own."""
    axes.errorbar(
        [interval.value], [place],
        xerr=[[interval.value - interval.low], [interval.high - interval.value]],
        color=look.colour, marker=look.marker, markersize=6, elinewidth=1.2, capsize=2,
    )  # fmt: skip


def level(axes: Any, look: Look, interval: Interval, order: int = 0) -> None:
    """What is the same all along the axis: a line in a band. The first line is wide, the next are
    narrow and dashed, so that those of one height do not hide each other."""
    dashes, width = (("-", 4.5), ("--", 1.6), (":", 1.6), ("-.", 1.6))[min(order, 3)]
    axes.axhspan(
        interval.low, interval.high, color=look.colour, alpha=0.15, linewidth=0, zorder=0.5
    )
    axes.axhline(
        interval.value, label=plain(look.label), color=look.colour,
        linestyle=dashes, linewidth=width, alpha=0.3 if order == 0 else 1.0, zorder=1 + 0.1 * order,
    )  # fmt: skip


def chart(
    axes: Any,
    looks: Mapping[str, Look],
    levels: Sequence[tuple[str, Interval]],
    lines: Sequence[tuple[str, Points]],
    shifted: bool = True,
) -> None:
    """Methods that are the same all along the axis, and those that are not. `shifted`: each line a
    little to the side on a logarithmic axis, so that bars do not hide each other."""
    for order, (method, interval) in enumerate(levels):
        level(axes, looks[method], interval, order)
    for order, (method, points) in enumerate(lines):
        shift = 1 + 0.025 * (order - (len(lines) - 1) / 2) if shifted else 1
        line(axes, looks[method], [(x * shift, interval) for x, interval in points])


def bounds(axes: Any, floors: Mapping[str, float]) -> None:
    """Floor and ceiling of the held-out tasks, named on the line; the lowest one below it, so that
    two close ones can both be read; names in one place are written as one. Where all of the methods
    are low the axis ends above them, and what lies beyond is named at its end."""
    top = 1.08 if axes.dataLim.y1 > 0.4 else max(0.1, 1.3 * axes.dataLim.y1)
    bounds_ = {name: value for name, value in floors.items() if name in _BOUNDS}
    places: dict[tuple[str, bool], list[str]] = {}
    for name, value in bounds_.items():
        axes.axhline(value, color=_BOUND, linestyle=(0, (1, 2)), linewidth=1, zorder=0.8)
        below = value > top or (value == min(bounds_.values()) and value > 0.08)
        beyond = ", above" if value > top else ""
        places.setdefault((f"{value:.2f}{beyond}", below), []).append(name)
    for (text, below), names in places.items():
        axes.annotate(
            f"{' and '.join(_BOUNDS[name] for name in names)} {text}",
            (0.01, min(bounds_[names[0]], top)), (0, -2 if below else 2),
            xycoords=("axes fraction", "data"), textcoords="offset points",
            fontsize=_SMALL, color=_BOUND, va="top" if below else "bottom",
        )  # fmt: skip
    axes.set_ylim(0, top)


def doubling(axes: Any, ticks: Sequence[float], label: str) -> None:
    """A logarithmic axis marked at `ticks`."""
    axes.set_xscale("log", base=2)
    evenly(axes, ticks, label)


def evenly(axes: Any, ticks: Sequence[float], label: str) -> None:
    axes.set_xticks(ticks, [f"{t:,.10g}" for t in ticks], fontsize=_SMALL)
    axes.minorticks_off()
    axes.set_xlabel(label)


def finish(figure: Any, title: str, caption: str, path: Path) -> list[Path]:
    """Title above, caption below; PNG and SVG, the same bytes for the same runs."""
    figure.tight_layout(pad=0.6)
    box = figure.subplotpars
    width, height = figure.get_size_inches()
    figure.text(box.left, 1 + 0.06 / height, plain(title), fontsize=10.5, va="bottom")
    lines = textwrap.fill(plain(caption), int(width * 19))
    figure.text(box.left, -0.08 / height, lines, fontsize=_SMALL, va="top", color="#333333")
    out = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, bbox_inches="tight", metadata=metadata)
        out.append(path.with_suffix(f".{kind}"))
        write_bytes(out[-1], drawn.getvalue())
    from matplotlib import pyplot

    pyplot.close(figure)
    return out


# -- of measured runs ------------------------------------------------------------------------------

_WIDEST = 40  # characters of a label's line, so that it leaves room for the bars


def rollout_scaling(grid: Cells, about: str, path: Path) -> list[Path]:
    """Success over the rollout budget: a line with bars a method, a band for one that is the same
    at every budget, and for the base agent. `about` says what was run."""
    figure, ((axes,),) = panels(1, 1, (6.6, 4.6))
    budgets = sorted({budget for _, budget in grid})
    methods = list(dict.fromkeys(method for method, _ in grid))
    by_method = {m: {b: c for (n, b), c in grid.items() if n == m} for m in methods}
    flat = {m: next(iter(c.values())) for m, c in by_method.items() if _constant([*c.values()])}
    levels = [(m, cell.interval()) for m, cell in flat.items()]
    control, cell = style().control, next(iter(grid.values()))
    if control not in by_method and began_alike([r for c in grid.values() for r in c.runs]):
        levels = [(control, cell.base.interval()), *levels]
    lines = [
        (m, [(b, c.interval()) for b, c in by_method[m].items()]) for m in methods if m not in flat
    ]
    chart(axes, style().looks([*methods, *(m for m, _ in levels)]), levels, lines)
    bounds(axes, cell.runs[0].floors)
    doubling(axes, budgets, "rollout budget")
    axes.set_ylabel(SUCCESS)
    axes.legend(**BESIDE)
    return finish(figure, "Success by rollout budget", f"{about}; {INTERVALS}.", path)


def _constant(cells_: Sequence[Cell]) -> bool:
    """Whether a method is the same at several budgets, task by task."""
    first = cells_[0].matrix
    return len(cells_) > 1 and all(np.array_equal(c.matrix, first, equal_nan=True) for c in cells_)


def single_budget(grid: Cells) -> int | None:
    """The one budget with several methods; None if there is no such or a method has several."""
    methods = Counter(budget for _, budget in grid)
    budgets = Counter(method for method, _ in grid)
    several = [budget for budget, count in methods.items() if count > 1]
    return several[0] if len(several) == 1 and max(budgets.values()) == 1 else None


def ranking(grid: Cells, budget: int, about: str, path: Path) -> list[Path]:
    """The methods' success at `budget`, the best above. `about` says what was run."""
    intervals = {m: cell.interval() for (m, b), cell in grid.items() if b == budget}
    methods = sorted(intervals, key=lambda m: (round(intervals[m].value, 9), m))
    looks = style().looks(methods)
    figure, ((axes,),) = panels(1, 1, (6.6, 0.3 * len(methods) + 1.0))
    for place, method in enumerate(methods):
        lying(axes, looks[method], place, intervals[method])
    labels = [textwrap.fill(plain(looks[m].label), _WIDEST) for m in methods]
    axes.set_yticks(range(len(methods)), labels)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_xlabel(SUCCESS)
    cut = " The axis does not begin at 0." if axes.get_xlim()[0] > 0 else ""
    caption = (
        f"{about}; bars are 95 % intervals over tasks and seeds. They hold what is common to all "
        f"methods, too: whether two of them differ is in the table pairs_{budget}.{cut}"
    )
    return finish(figure, f"Success at {budget:,} rollouts", caption, path)
