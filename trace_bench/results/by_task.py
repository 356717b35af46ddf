"""Two agents compared task by task, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_lines, read_object
from trace_bench.results.two import Side


def per_task(a: Side, b: Side, folders: Mapping[str, Path]) -> str:
    """CSV with a line a task: what it needs (where the suite says so), success of both sides and
    of their base agents (means over seeds and trials, empty where every one was lost), A less B,
    and what that makes of A: better, worse, same, or dropped where one of them has no score. Raises
    UserError where there is no run folder with the names of the tasks."""
    folder = next((folders[r.fingerprint] for r in (*a.records, *b.records)
                   if r.fingerprint in folders), None)  # fmt: skip
    if folder is None:
        raise UserError(
            "--csv needs the names of the tasks, which a file of records does not hold. Name the "
            "folder of one of the runs."
        )
    ids = sorted({o["task"] for o in read_lines(folder / "evaluation.jsonl")
                  if o["agent"] == "final"})  # fmt: skip
    tags = read_object(folder / TASKS) if (folder / TASKS).exists() else {}
    needs = {task: words for task, words in tags.items() if isinstance(words, list)}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("task", "needs", "A", "B", "A less B", "A is", "base of A", "base of B"))
    columns = [cell.per_task.tolist() for cell in (a.cell, b.cell, a.base, b.base)]
    for task, one, two, *bases in zip(ids, *columns, strict=True):
        words, (gap, made) = " ".join(map(str, needs.get(task, ()))), change(one, two)
        writer.writerow((task, words, *map(_figure, (one, two, gap)), made, *map(_figure, bases)))
    return out.getvalue()


def _figure(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.6g}"


def change(one: float, two: float) -> tuple[float, str]:
    """A less B, and what that makes of A. Means that only rounding tells apart are the same."""
    gap = round(one - two, 9) + 0.0  # no -0
    if np.isnan(gap):
        return gap, "dropped"
    return gap, "same" if gap == 0 else "better" if gap > 0 else "worse"
