"""Reads what the report shows: of a run its tasks and curves; of all runs their rows, as in the
tables, and the differences of these, by the tables' statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_if_there, read_lines
from trace_bench.core.types import Outcome, grouped, to_json
from trace_bench.results import captions
from trace_bench.results.cells import Cell, cells, difference
from trace_bench.results.compare import check_pairable
from trace_bench.results.groups import groups_of
from trace_bench.results.places import find as runs_at
from trace_bench.results.run import Run, counted
from trace_bench.results.statistics import holm

Row = Mapping[str, Any]
MOST = 60
"""Pairs of rows; with more, every row is compared with the first one only."""


def find(places: Sequence[Path]) -> tuple[list[Cell], tuple[str, ...]]:
    """The finished runs at or below `places`, in rows, and what was skipped. UserError for none."""
    check_folders(places)
    selection = runs_at(places)
    if not selection.runs:
        why = "; ".join(selection.skipped[:3]) or "no folder with a config.yaml"
        raise UserError(f"no finished run in {', '.join(map(str, places))} ({why}).")
    return rows_of(selection.runs), selection.skipped


def check_folders(places: Sequence[Path]) -> None:
    """Raises UserError for one that is none."""
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is not a folder. Name folders of runs.")


def rows_of(runs: Sequence[Run]) -> list[Cell]:
    """The runs in the rows of the tables and in their order, each row under a name of its own."""
    every = {r.fingerprint: r for r in runs}
    comparable = groups_of(captions.by_total([r for r in every.values() if r.before is not None]))
    rows = [cell for group in comparable for cell in cells(group.runs).values()]
    rows = [replace(c, runs=tuple(every[r.fingerprint] for r in c.runs)) for c in rows]
    for row in rows:
        for run in row.runs:
            del every[run.fingerprint]
    # What stands in no table has a row of its own: a second run of a seed, a cost that is unknown.
    rows += [Cell(captions.name(run), run.budget, (run,)) for run in every.values()]
    titles = [f"{row.method}, budget {row.budget}" for row in rows]
    return [
        replace(row, method=t if titles.count(t) == 1 else f"{t} ({row.runs[0].fingerprint})")
        for row, t in zip(rows, titles, strict=True)
    ]


def folder_of(run: Run) -> Path:
    assert run.folder is not None  # as no place is a file
    return run.folder


def tasks(run: Run) -> dict[str, Any]:
    """The held-out tasks: {ids, tags: [[str]], agents: {agent: columns}}. A column holds a value
    per task in the order of ids: success and similarity (means over trials, null where every trial
    was lost), adapters (names of those that acted), errors."""
    lines = read_lines(folder_of(run) / "evaluation.jsonl", Outcome)
    by_agent = grouped(lines, lambda line: line.agent)
    ids = sorted({line.task for line in lines})
    tags = read_if_there(folder_of(run) / TASKS)
    columns = {a: _columns(counted(some), ids) for a, some in by_agent.items()}
    return {"ids": ids, "tags": [tags.get(i, []) for i in ids], "agents": columns}


def _columns(lines: Sequence[Outcome], ids: Sequence[str]) -> dict[str, list[Any]]:
    of_task = grouped(lines, lambda line: line.task)
    by_task = [of_task.get(i, []) for i in ids]
    return {
        "success": [_mean([o.success for o in trials if not o.lost]) for trials in by_task],
        "similarity": [_mean([o.similarity for o in trials if not o.lost]) for trials in by_task],
        "adapters": [sorted({o.adapter or "base model" for o in trials}) for trials in by_task],
        "errors": [sorted({o.error for o in trials if o.error}) for trials in by_task],
    }


def _mean(scores: Sequence[float]) -> float | None:
    return round(sum(scores) / len(scores), 4) if scores else None


def capabilities(run: Run) -> dict[str, Any] | None:
    """What capabilities.json says, with its labels counted per capability; None without one."""
    if not (report := read_if_there(folder_of(run) / "capabilities.json")):
        return None
    labels: dict[str, Counter[str]] = {}
    for row in report.get("labels", ()):
        kind = "passed" if row["passed"] else "failed"
        for name, label in row["labels"].items():
            labels.setdefault(name, Counter())[f"{label} {kind}"] += 1
    facts = ("analysis", "thresholds", "calibration", "training", "outcome", "dropped")
    return {
        **{key: report[key] for key in facts if key in report},
        "candidates": [
            {k: v for k, v in c.items() if k != "runs"} | {"of": len(c["runs"])}
            for c in report.get("candidates", ())
        ],
        "labels": labels,
    }


def curves(run: Run) -> list[Row]:
    """The iterations of training, one row each, as the trainer logged them."""
    keep = ("rollouts", "adapter", "iteration", "reward", "success", "constant_share", "kl", "loss")
    rows = read_lines(folder_of(run) / "metrics.jsonl")
    return [{k: r.get(k) for k in keep} for r in rows if r.get("phase") == "training"]


def differences(rows: Sequence[Cell]) -> tuple[list[dict[str, Any]], list[str]]:
    """[{left, right: indices of rows, gap: the paired difference left less right, on `n` tasks, or
    `why` there is none}] for every pair, and remarks."""
    chosen, remarks = list(combinations(range(len(rows)), 2)), list[str]()
    if len(chosen) > MOST:
        chosen = [(0, i) for i in range(1, len(rows))]
        remarks = [f"With more than {MOST} pairs, every row is compared with the first one only."]
    pairs = [_pair(rows, left, right) for left, right in chosen]
    gaps = {str(n): pair["gap"] for n, pair in enumerate(pairs) if "gap" in pair}
    for n, p in holm({n: gap.p for n, gap in gaps.items()}).items():
        pairs[int(n)]["gap"] = {**to_json(gaps[n].interval), "p_value": p}
    return pairs, remarks


def _pair(rows: Sequence[Cell], left: int, right: int) -> dict[str, Any]:
    one, other = rows[left], rows[right]
    pair: dict[str, Any] = {"left": left, "right": right}
    try:
        check_pairable(one.runs[0], other.runs[0])
        pair["gap"] = difference(one, other)
    except UserError as error:
        return pair | {"why": str(error)}
    both = ~np.isnan(one.per_task - other.per_task)
    return pair | {"n": int(both.sum()), "dropped": int((~both).sum())}
