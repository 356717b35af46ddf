"""The closing table of runs in which an episode, or every one of them, was lost."""

from __future__ import annotations

from dataclasses import replace

from summaries import NOTHING, SUMMARY

from trace_bench.core.summary import CurvePoint
from trace_bench.runner import report


def test_a_point_of_the_curve_without_a_score_says_so() -> None:
    none = CurvePoint(checkpoint=64, rollouts=60, **vars(NOTHING))
    curve = (none, replace(none, checkpoint=128, success=0.25))
    text = report.closing(replace(SUMMARY, dev_split="dev", curve=curve))
    assert "curve on dev: 64: no score, 128: 0.250" in text
