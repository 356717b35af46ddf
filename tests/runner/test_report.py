"""The closing table of runs in which an episode, or every one of them, was lost."""

from __future__ import annotations

from typing import Any

from trace_bench.runner import report

NOTHING = {"success": None, "similarity": None, "interval": None, "n": 0, "failures": 6}


def test_another_run_without_a_score_is_one_line() -> None:
    summary: dict[str, Any] = {"score": NOTHING, "difference": None}
    assert report.beside("grpo", summary) == "grpo: no held-out episode has a score"


def test_a_point_of_the_curve_without_a_score_says_so() -> None:
    assert report.curve_point({"checkpoint": 64, "success": None}) == "64: no score"
    assert report.curve_point({"checkpoint": 64, "success": 0.25}) == "64: 0.250"
