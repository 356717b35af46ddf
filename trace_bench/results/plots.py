"""Plots in a uniform style: a colour-blind-safe palette (Okabe and Ito), a marker for each method,
and sizes that stay legible in a printed column."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import write_bytes
from trace_bench.results.compare import Cell, cells
from trace_bench.results.records import Record, training_tasks
from trace_bench.results.statistics import Interval, wilson_interval
from trace_bench.results.style import OTHER, style

_WINDOW = 8


def check_installed() -> None:
    """Raises UserError if figures cannot be drawn, before anything is written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(
            "the figures need the package matplotlib, which is not installed: pip install "
            "'trace_bench[plots]'. The commands collect, search and export draw none."
        ) from error


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
    return out


def _plain(text: str) -> str:
    """A text that matplotlib shows as it is: between dollar signs it would read formulas."""
    return text.replace("$", r"\$")


Points = Sequence[tuple[float, Interval]]


def _line(axes: Any, method: str, points: Points, dashed: bool = False) -> None:
    """One method's values with their intervals."""
    axes.errorbar(
        [x for x, _ in points],
        [i.value for _, i in points],
        yerr=[[i.value - i.low for _, i in points], [i.high - i.value for _, i in points]],
        label=_plain(method),
        color=style().colour(method),
        marker=style().marker(method),
        markersize=5,
        linewidth=1.4,
        elinewidth=0.8,
        capsize=2,
        linestyle="--" if dashed else "-",
    )


def _doubling(axes: Any, ticks: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(t) for t in ticks], fontsize=7)
    axes.minorticks_off()
    axes.set_xlabel(label)


def _finish(figure: Any, axes: Any, title: str, path: Path) -> list[Path]:
    """Legend beside the last panel, title above, both files."""
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    above = 1.04 if axes.get_title() else 0.98  # panels have titles of their own
    figure.suptitle(_plain(title), fontsize=8, y=above)
    saved = _save(figure, path)
    _pyplot().close(figure)
    return saved


def rollout_scaling(found: Mapping[tuple[str, int], Cell], title: str, path: Path) -> list[Path]:
    """Success over the rollout budget, a line a method, bars for the intervals."""
    figure, axes = _pyplot().subplots(figsize=(6.4, 4.0))
    budgets = sorted({budget for _, budget in found})
    methods = list(dict.fromkeys(method for method, _ in found))
    for n, method in enumerate(methods):
        shift = 1 + 0.012 * (n - len(methods) / 2)  # so that the bars do not lie on each other
        own = [(b * shift, found[method, b].interval()) for b in budgets if (method, b) in found]
        _line(axes, method, own, dashed=method == style().control)
    _doubling(axes, budgets, "rollout budget")
    axes.set_ylabel("success on held-out tasks")
    return _finish(figure, axes, title, path)


def by_training_tasks(
    records: Sequence[Record], level: Sequence[Record], title: str, path: Path
) -> list[Path]:
    """One panel a budget: success over the number of training tasks, a line a method; `level` are
    runs of methods that do not look at the training tasks, the same at every number."""
    budgets = sorted({r.budget for r in records})
    figure, panels = _pyplot().subplots(
        1, len(budgets), figsize=(2.4 * len(budgets) + 1, 3.0), sharey=True, squeeze=False
    )
    sizes = sorted({training_tasks(r) for r in records})
    flat = cells(level)
    for axes, budget in zip(panels[0], budgets, strict=True):
        for method in dict.fromkeys(m for m, b in flat if b == budget):
            interval = flat[method, budget].interval()
            _line(axes, method, [(size, interval) for size in sizes], dashed=True)
        for method in sorted({r.method for r in records}):
            own = [r for r in records if r.method == method and r.budget == budget]
            by = {n: [r for r in own if training_tasks(r) == n] for n in sizes}
            _line(axes, method, [(n, _interval(some)) for n, some in by.items() if some])
        _doubling(axes, sizes, "training tasks")
        axes.set_title(f"{budget} rollouts", fontsize=9)
    panels[0][0].set_ylabel("success on held-out tasks")
    return _finish(figure, panels[0][-1], title, path)


def _interval(records: Sequence[Record]) -> Interval:
    return next(iter(cells(records).values())).interval()


def by_capabilities(records: Sequence[Record], title: str, path: Path) -> list[Path]:
    """Success over the most capabilities that a method may use, a line a method."""
    figure, axes = _pyplot().subplots(figsize=(4.8, 3.4))
    sizes = sorted({int(r.method_settings["max_capabilities"]) for r in records})
    for method in sorted({r.method for r in records}):
        own = [r for r in records if r.method == method]
        by = {n: [r for r in own if int(r.method_settings["max_capabilities"]) == n] for n in sizes}
        _line(axes, method, [(n, _interval(some)) for n, some in by.items() if some])
    _doubling(axes, sizes, "capabilities at most")
    axes.set_ylabel("success on held-out tasks")
    return _finish(figure, axes, title, path)


def learning_curves(records: Sequence[Record], title: str, path: Path) -> list[Path]:
    """Above the reward of the training rollouts over the rollouts spent, below the share of groups
    without an advantage (all members have one reward): a line an adapter and run, running means
    over `_WINDOW` iterations, at the largest budget. A method with several adapters trains them one
    after the other."""
    trained = [r for r in records if r.training]
    budget = max(r.budget for r in trained)
    trained = [r for r in trained if r.budget == budget]
    methods = sorted({r.method for r in trained})
    figure, panels = _pyplot().subplots(
        2, len(methods), figsize=(2.6 * len(methods), 4.4), sharex=True, sharey=True, squeeze=False
    )
    for column, method in zip(panels.T, methods, strict=True):
        for points in [p for r in trained if r.method == method for p in _per_adapter(r)]:
            for axes, value in zip(column, (2, 4), strict=True):
                axes.plot(
                    [p[0] for p in points],
                    _running([p[value] for p in points]),
                    color=style().colour(method),
                    linewidth=0.9,
                    alpha=0.7,
                )
        column[0].set_title(_plain(method), fontsize=9)
        column[1].set_xlabel("rollouts spent")
    panels[0][0].set_ylabel("mean reward")
    panels[1][0].set_ylabel("groups without advantage")
    figure.suptitle(_plain(f"{title}, {budget} rollouts"), fontsize=8, y=0.98)
    saved = _save(figure, path)
    _pyplot().close(figure)
    return saved


def _running(values: Sequence[float]) -> list[float]:
    """Means over the last `_WINDOW` values."""
    spans = [values[max(0, n - _WINDOW + 1) : n + 1] for n in range(len(values))]
    return [sum(span) / len(span) for span in spans]


def _per_adapter(record: Record) -> list[list[Any]]:
    """The training points of each adapter, nothing of what gave no reward."""
    names = dict.fromkeys(p[1] for p in record.training)
    return [[p for p in record.training if p[1] == n and p[2] is not None] for n in names]


def paper_scaling(
    reported: Mapping[str, Any], found: Mapping[tuple[str, int], Cell], path: Path
) -> list[Path]:
    """Mean similarity over the budget: as reported by the paper on the left, ours on the right (an
    empty panel where nothing was run). Two worlds: compare the shapes, not the heights."""
    figure, (left, right) = _pyplot().subplots(1, 2, figsize=(7.2, 3.4), sharey=True)
    budgets = sorted({b for _, b in found})
    for method in ("base", "grpo", "gepa", "trace"):
        values = reported[method]
        values = [values] * len(reported["budget"]) if isinstance(values, float) else values
        _line(left, method, [(b, Interval(v, v, v)) for b, v in
                             zip(reported["budget"], values, strict=True)])  # fmt: skip
        ours = [(b, found[method, b].similarity()) for b in budgets if (method, b) in found]
        if ours:
            _line(right, method, ours)
    _doubling(left, reported["budget"], "training rollouts")
    _doubling(right, budgets or reported["budget"], "rollouts, all counted")
    left.set_title("reported: official suite, 129 tasks, 1 seed", fontsize=8)
    world = _plain(_world(found)) if found else "nothing was run"
    right.set_title(f"ours: {world}", fontsize=8)
    left.set_ylabel("mean similarity")
    left.legend(frameon=False, fontsize=7)
    saved = _save(figure, path)
    _pyplot().close(figure)
    return saved


def _world(found: Mapping[tuple[str, int], Cell]) -> str:
    """What was measured, in a few words."""
    first = next(iter(found.values())).records[0]
    suite, tasks = first.settings["env.suite"], len(first.success)
    return f"{suite} suite, {first.settings.get('model.name')} model, {tasks} tasks, range of seeds"


def paper_tau2(data: Mapping[str, Any], path: Path) -> list[Path]:
    """τ²-bench as reported, with the intervals that 164 tasks imply: pass rate over the budget and
    over the number of capabilities, and the router against the oracle. Nothing of ours is in it."""
    figure, (left, middle, right) = _pyplot().subplots(1, 3, figsize=(9.6, 3.2))

    def implied(percent: float) -> Interval:
        return wilson_interval(percent / 100 * data["tasks"], data["tasks"])

    scaling = data["rollouts"]
    for method in ("grpo", "gepa", "trace"):
        points = zip(scaling["budget"], scaling[method], strict=True)
        _line(left, method, [(b, implied(v)) for b, v in points])
    _doubling(left, scaling["budget"], "training rollouts")
    for method in ("prompt_only", "trace"):
        curve = data["capabilities"][method]
        _line(middle, method, [(int(n), implied(v)) for n, v in curve.items()])
    _doubling(middle, [1, 2, 4, 8, 16], "capabilities")
    routing = data["routing"]
    for name, marker, dashes in (("oracle_tasks", "D", "--"), ("router_correct", "o", "-")):
        label = {"oracle_tasks": "some adapter solves it", "router_correct": "routed to such a one"}
        right.plot(
            routing["capabilities"], routing[name], marker=marker, linestyle=dashes, color=OTHER,
            label=label[name], linewidth=1.4, markersize=5,
        )  # fmt: skip
    _doubling(right, routing["capabilities"], "capabilities")
    left.set_ylabel("pass rate")
    right.set_ylabel(f"tasks, of {data['tasks']}")
    for axes in (left, middle, right):
        axes.legend(frameon=False, fontsize=7)
    middle.set_title(
        f"reported: τ²-bench, {data['tasks']} tasks, 1 seed, 1 trial; ours: nothing was run",
        fontsize=8,
    )
    figure.tight_layout()
    saved = _save(figure, path)
    _pyplot().close(figure)
    return saved
