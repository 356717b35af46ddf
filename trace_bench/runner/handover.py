"""Hands a finished run's held-out episodes and report to its tracker, if that takes them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_lines, read_object, write_text
from trace_bench.report.page import build
from trace_bench.report.runs import find
from trace_bench.trackers.jsonl import Metrics

MOST_BYTES = 60_000_000
"""Of the report, beyond which conversations of training are left out."""
FIRST = ("final", "base")


def hand_over(folder: Path, metrics: Metrics) -> None:
    """Of a run whose summary is written. A failure is the tracker's, and ends nothing."""
    with tempfile.TemporaryDirectory() as place:
        page = Path(place, "report.html")

        def make() -> tuple[list[dict[str, Any]], Path]:
            write_text(page, build(find([folder]), MOST_BYTES).html)
            return episodes(folder), page

        metrics.report(make)


def episodes(folder: Path) -> list[dict[str, Any]]:
    """Every attempt at a held-out task: agent, task, needs, trial, attempt, success and similarity
    (None for a lost one), adapter, stop, tokens, error."""
    tags = read_object(folder / TASKS) if (folder / TASKS).exists() else {}
    rows = [_row(line, tags) for line in read_lines(folder / "evaluation.jsonl")]
    return sorted(rows, key=lambda row: (row["agent"] not in FIRST, row["agent"] != FIRST[0]))


def _row(line: Mapping[str, Any], tags: Mapping[str, list[str]]) -> dict[str, Any]:
    score = line["score"] or {}
    return {
        "agent": line["agent"],
        "task": line["task"],
        "needs": " ".join(tags.get(line["task"], ())),
        "trial": line["trial"],
        "attempt": line["attempt"],
        "success": score.get("success"),
        "similarity": score.get("similarity"),
        "adapter": line["adapter"],
        "stop": line["stop"],
        "tokens": line["tokens"],
        "error": line["error"],
    }
