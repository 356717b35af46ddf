"""Reads what the report shows: of a run its settings, tasks and curves; of two the
difference, task by task, with the statistics of the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_if_there, read_lines
from trace_bench.core.types import Outcome, grouped, to_json
from trace_bench.results import captions
from trace_bench.results.cells import Cell, difference
from trace_bench.results.groups import other_data, other_environment
from trace_bench.results.places import find as runs_at
from trace_bench.results.run import DEFAULT, Run, counted

Row = Mapping[str, Any]
MOST = 60
"""Pairs of runs; with more, every run is compared with the first one only."""


def find(places: Sequence[Path]) -> tuple[list[Run], tuple[str, ...]]:
    """The finished runs at or below `places`, each once and with a row's name of its own, and what
    was skipped. UserError when there is none."""
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is not a folder. Name folders of finished runs.")
    selection = runs_at(places, DEFAULT)
    if not selection.runs:
        why = "; ".join(selection.skipped[:3]) or "no folder with a config.yaml"
        raise UserError(f"no finished run in {', '.join(map(str, places))} ({why}).")
    names = [f"{captions.name(r)}, budget {r.budget}, seed {r.seed}" for r in selection.runs]
    runs = [
        run.named(name if names.count(name) == 1 else f"{name} ({run.fingerprint})")
        for run, name in zip(selection.runs, names, strict=True)
    ]
    return runs, selection.skipped


def folder_of(run: Run) -> Path:
    assert run.folder is not None  # as no place is a file
    return run.folder


def settings(run: Run) -> dict[str, Any]:
    """All that decides the result, flat, without what may differ anyway."""
    first = {"method": run.titled, "budget": run.budget, "seed": run.seed}
    if began := captions.began_with(run):
        first["begins with"] = began
    return {**first, **run.flat}


def tasks(run: Run) -> dict[str, Any]:
    """The held-out tasks: {ids, tags: [[str]], agents: {agent: columns}}. A column holds a value
    per task in the order of ids: success and similarity (means over trials, null where every trial
    was lost), adapters (names of those that acted), errors."""
    lines = read_lines(folder_of(run) / "evaluation.jsonl", Outcome)
    by_agent = grouped(lines, lambda line: line.agent)
    ids = sorted({line.task for line in lines})
    tags = read_if_there(folder_of(run) / TASKS)
    columns = {a: _columns(counted(some, DEFAULT), ids) for a, some in by_agent.items()}
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
    first, second = settings(one), settings(other)
    differ = [
        [key, first.get(key), second.get(key)]
        for key in dict.fromkeys([*first, *second])
        if first.get(key) != second.get(key)
    ]
    differ += map(list, other_data(one, other))
    pair: dict[str, Any] = {"left": left, "right": right, "differ": differ}
    if one.tasks != other.tasks:
        return pair | {"why": "they were evaluated on different tasks"}
    if code := other_environment(one, other):
        why = "their environments have other code, so one task id may stand for two tasks"
        return pair | {"why": f"{why} ({code})"}
    scores = zip(one.success, other.success, strict=True)
    both = sum(a is not None and b is not None for a, b in scores)
    if not both:
        return pair | {"why": "no task has a score in both"}
    gap = difference(*(Cell(r.label, r.budget, (r,)) for r in (other, one)))
    figures = {**to_json(gap.interval), "p_value": gap.p, "n": both}
    return pair | {"found": {**figures, "dropped": len(one.success) - both}}
