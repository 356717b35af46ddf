"""Differences between runs, task by task, with the statistics of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from trace_bench.core.types import to_json
from trace_bench.report.runs import Run
from trace_bench.results.compare import Cell, difference, other_data, other_environment

MOST = 60


def differences(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], str]:
    """[{left, right: indices of runs, differ: [[setting, left, right]], found: the paired
    difference right - left with `dropped` tasks, or `why` there is none}] for every pair, and a
    remark: with many runs, only pairs with the first one are compared."""
    chosen = list(combinations(range(len(runs)), 2))
    remark = ""
    if len(chosen) > MOST:
        chosen = [(0, i) for i in range(1, len(runs))]
        remark = f"With more than {MOST} pairs, every run is compared with the first one only."
    return [_pair(runs, left, right) for left, right in chosen], remark


def _pair(runs: Sequence[Run], left: int, right: int) -> dict[str, Any]:
    one, other = runs[left], runs[right]
    keys = dict.fromkeys([*one.settings, *other.settings])
    differ = [
        [key, one.settings.get(key), other.settings.get(key)]
        for key in keys
        if one.settings.get(key) != other.settings.get(key)
    ]
    differ += map(list, other_data(one.record, other.record))
    pair: dict[str, Any] = {"left": left, "right": right, "differ": differ}
    if one.record.tasks != other.record.tasks:
        return pair | {"why": "they were evaluated on different tasks"}
    if code := other_environment(one.record, other.record):
        why = "their environments have other code, so one task id may stand for two tasks"
        return pair | {"why": f"{why} ({code})"}
    scores = zip(one.record.success, other.record.success, strict=True)
    both = sum(a is not None and b is not None for a, b in scores)
    if not both:
        return pair | {"why": "no task has a score in both"}
    cells = [Cell(r.record.method, r.record.budget, (r.record,)) for r in (other, one)]
    found = difference(*cells)
    figures = {**to_json(found.interval), "p_value": found.p, "n": both}
    return pair | {"found": {**figures, "dropped": len(one.record.success) - both}}
