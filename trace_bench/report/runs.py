"""Reads what the report shows: of a run its record, summary, settings, tasks and curves; of two the
difference, task by task, with the statistics of the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_if_there, read_lines
from trace_bench.core.summary import Summary
from trace_bench.core.types import Outcome, grouped, to_json
from trace_bench.results import captions
from trace_bench.results.compare import DEFAULTS, Cell, difference, other_data, other_environment
from trace_bench.results.places import find as records_in
from trace_bench.results.records import DEFAULT, Record, flat_settings
from trace_bench.results.runs import counted, finished

Row = Mapping[str, Any]
MOST = 60
"""Pairs of runs; with more, every run is compared with the first one only."""


@dataclass(frozen=True)
class Run:
    """A finished run. `name` tells it from the others in the report; `settings` are flat, without
    those in which runs may differ anyway."""

    folder: Path
    name: str
    record: Record
    summary: Summary
    settings: Mapping[str, Any]


def find(places: Sequence[Path]) -> tuple[list[Run], tuple[str, ...]]:
    """The finished runs at or below `places`, each once and with names of which no two are equal,
    and what was skipped. UserError when there is none."""
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is not a folder. Name folders of finished runs.")
    found = records_in(places, DEFAULT)
    if not found.records:
        shown = "; ".join(found.skipped[:3]) or "no folder with a config.yaml"
        raise UserError(f"no finished run in {', '.join(map(str, places))} ({shown}).")
    names = [f"{captions.name(r)}, budget {r.budget}, seed {r.seed}" for r in found.records]
    runs = []
    for name, record in zip(names, found.records, strict=True):
        if names.count(name) > 1:
            name += f" ({record.fingerprint})"
        own = {"method": record.label, "budget": record.budget, "seed": record.seed}
        if began := captions.began_with(record):
            own["begins with"] = began
        settings, folder = {**own, **flat_settings(record)}, record.folder
        assert folder is not None  # as no place is a file
        runs.append(Run(folder, name, record, finished(folder), settings))
    return runs, found.skipped


def tasks(run: Run) -> dict[str, Any]:
    """The held-out tasks: {ids, tags: [[str]], agents: {agent: columns}}. A column holds a value
    per task in the order of ids: success and similarity (means over trials, null where every trial
    was lost), adapters (names of those that acted), errors."""
    lines = read_lines(run.folder / "evaluation.jsonl", Outcome)
    by_agent = grouped(lines, lambda line: line.agent)
    ids = sorted({line.task for line in lines})
    tags = read_if_there(run.folder / TASKS)
    columns = {agent: _columns(counted(own, DEFAULT), ids) for agent, own in by_agent.items()}
    return {"ids": ids, "tags": [tags.get(i, []) for i in ids], "agents": columns}


def _columns(lines: Sequence[Outcome], ids: Sequence[str]) -> dict[str, list[Any]]:
    of_task = grouped(lines, lambda line: line.task)
    own = [of_task.get(i, []) for i in ids]
    return {
        "success": [_mean([o.success for o in trials if not o.lost]) for trials in own],
        "similarity": [_mean([o.similarity for o in trials if not o.lost]) for trials in own],
        "adapters": [sorted({o.adapter or "base model" for o in trials}) for trials in own],
        "errors": [sorted({o.error for o in trials if o.error}) for trials in own],
    }


def _mean(known: Sequence[float]) -> float | None:
    return round(sum(known) / len(known), 4) if known else None


def capabilities(run: Run) -> dict[str, Any] | None:
    """What capabilities.json says, with its labels counted per capability; None without one."""
    if not (found := read_if_there(run.folder / "capabilities.json")):
        return None
    labels: dict[str, Counter[str]] = {}
    for row in found.get("labels", ()):
        kind = "passed" if row["passed"] else "failed"
        for name, label in row["labels"].items():
            labels.setdefault(name, Counter())[f"{label} {kind}"] += 1
    shown = ("analysis", "thresholds", "calibration", "training", "outcome", "dropped")
    return {
        **{key: found[key] for key in shown if key in found},
        "candidates": [
            {k: v for k, v in c.items() if k not in ("runs", "examples")} | {"of": len(c["runs"])}
            for c in found.get("candidates", ())
        ],
        "labels": labels,
    }


def curves(run: Run) -> list[Row]:
    """The iterations of training, one row each, as the trainer logged them."""
    keep = ("rollouts", "adapter", "iteration", "reward", "success", "constant_share", "kl", "loss")
    rows = read_lines(run.folder / "metrics.jsonl")
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
    first, second = ({**DEFAULTS, **run.settings} for run in (one, other))
    differ = [
        [key, first.get(key), second.get(key)]
        for key in dict.fromkeys([*one.settings, *other.settings])
        if first.get(key) != second.get(key)
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
    cells = [Cell(r.record.label, r.record.budget, (r.record,)) for r in (other, one)]
    found = difference(*cells)
    figures = {**to_json(found.interval), "p_value": found.p, "n": both}
    return pair | {"found": {**figures, "dropped": len(one.record.success) - both}}
