"""One look for every figure: sizes, lines with their intervals, bands, bounds, caption, files.

A figure says in its title what it shows and in the caption below it what its intervals are, so that
it can be read away from its page. Series differ in marker and dash as well as in colour.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import write_bytes
from trace_bench.results.statistics import Interval
from trace_bench.results.style import Look

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


def check_installed() -> None:
    """Raises UserError if figures cannot be drawn, before anything is written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(
            "the figures need the package matplotlib, which is not installed: pip install "
            "'.[plots]'. The commands collect, search and export draw none."
        ) from error


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
        [x for x, _ in points],
        [i.value for _, i in points],
        yerr=[[i.value - i.low for _, i in points], [i.high - i.value for _, i in points]],
        label=plain(look.label),
        color=look.colour,
        marker=look.marker,
        markersize=6,
        linewidth=1.4,
        elinewidth=0.8,
        capsize=2,
    )


def level(axes: Any, look: Look, interval: Interval, order: int = 0) -> None:
    """What is the same all along the axis: a line in a band. The first one is wide, the next are
    narrow and dashed, so that those of one height do not hide each other."""
    dashes, width = (("-", 4.5), ("--", 1.6), (":", 1.6), ("-.", 1.6))[min(order, 3)]
    axes.axhspan(
        interval.low, interval.high, color=look.colour, alpha=0.15, linewidth=0, zorder=0.5
    )
    axes.axhline(
        interval.value, label=plain(look.label), color=look.colour,
        linestyle=dashes, linewidth=width, alpha=0.3 if order == 0 else 1.0, zorder=1 + 0.1 * order,
    )  # fmt: skip


def curve(
    axes: Any, x: Sequence[float], low: Sequence[float], middle: Sequence[float],
    high: Sequence[float], colour: str, dashes: str = "-", label: str | None = None,
) -> None:  # fmt: skip
    """A line within a band."""
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, middle, color=colour, linestyle=dashes, linewidth=1.4, label=label)


def bounds(axes: Any, floors: Mapping[str, float], named: bool = True) -> None:
    """Floor and ceiling of the held-out tasks, where the records have them, named on the line. The
    lowest one's name stands below its line, so that two close ones can both be read; names that
    would stand in one place are written as one."""
    known = {name: value for name, value in floors.items() if name in _BOUNDS}
    places: dict[tuple[str, bool], list[str]] = {}
    for name, value in known.items():
        axes.axhline(value, color=_BOUND, linestyle=(0, (1, 2)), linewidth=1, zorder=0.8)
        below = value == min(known.values()) and value > 0.08
        places.setdefault((f"{value:.2f}", below), []).append(name)
    for (text, below), names in places.items() if named else ():
        axes.annotate(
            f"{' and '.join(_BOUNDS[name] for name in names)} {text}",
            (0.01, known[names[0]]), (0, -2 if below else 2),
            xycoords=("axes fraction", "data"), textcoords="offset points",
            fontsize=_SMALL, color=_BOUND, va="top" if below else "bottom",
        )  # fmt: skip
    axes.set_ylim(0, 1.08)


def doubling(axes: Any, ticks: Sequence[float], label: str) -> None:
    """A logarithmic axis marked at `ticks`."""
    axes.set_xscale("log", base=2)
    evenly(axes, ticks, label)


def evenly(axes: Any, ticks: Sequence[float], label: str) -> None:
    """An axis marked at `ticks`."""
    axes.set_xticks(ticks, [f"{t:,.10g}" for t in ticks], fontsize=_SMALL)
    axes.minorticks_off()
    axes.set_xlabel(label)


def beside(axes: Any) -> None:
    """The legend to the right of the last panel."""
    axes.legend(**BESIDE)


def finish(figure: Any, title: str, caption: str, path: Path) -> list[Path]:
    """Title above, caption below; PNG and SVG, without a date in them: the same records give the
    same files."""
    figure.tight_layout(pad=0.6)
    box = figure.subplotpars
    width, height = figure.get_size_inches()
    figure.text(box.left, 1 + 0.06 / height, plain(title), fontsize=10.5, va="bottom")
    lines = textwrap.fill(plain(caption), int(width * 19))
    figure.text(box.left, -0.08 / height, lines, fontsize=_SMALL, va="top", color="#333333")
    without: dict[str, dict[str, None]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
    }
    out = []
    for kind, metadata in without.items():
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, bbox_inches="tight", metadata=metadata)
        out.append(path.with_suffix(f".{kind}"))
        write_bytes(out[-1], drawn.getvalue())
    from matplotlib import pyplot

    pyplot.close(figure)
    return out
