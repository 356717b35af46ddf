"""The figure of methods at one budget, where there are not several budgets to draw lines over."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from trace_bench.results.compare import Cell
from trace_bench.results.drawing import SUCCESS, finish, panels, plain
from trace_bench.results.style import style

_WIDEST = 40
"""Characters of a label's line, so that it leaves room for the bars."""


def single_budget(found: Mapping[tuple[str, int], Cell]) -> int | None:
    """The one budget at which there are several methods; None if there are more such budgets, or
    none, or a method has several budgets."""
    methods = Counter(budget for _, budget in found)
    budgets = Counter(method for method, _ in found)
    several = [budget for budget, count in methods.items() if count > 1]
    return several[0] if len(several) == 1 and max(budgets.values()) == 1 else None


def ranking(
    found: Mapping[tuple[str, int], Cell], budget: int, about: str, path: Path
) -> list[Path]:
    """The methods' success at `budget`, the best above. `about` says what was run."""
    intervals = {m: cell.interval() for (m, b), cell in found.items() if b == budget}
    methods = sorted(intervals, key=lambda m: intervals[m].value)
    looks = style().looks(methods)
    figure, ((axes,),) = panels(1, 1, (6.6, 0.3 * len(methods) + 1.0))
    for place, method in enumerate(methods):
        own, look = intervals[method], looks[method]
        axes.errorbar(
            [own.value], [place], xerr=[[own.value - own.low], [own.high - own.value]],
            color=look.colour, marker=look.marker, markersize=6, elinewidth=1.2, capsize=2,
        )  # fmt: skip
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
