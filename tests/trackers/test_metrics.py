"""metrics.jsonl: what a repeated run logs again is not written twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trace_bench.trackers.jsonl import Metrics, Silent


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf, -math.inf])
def test_a_line_is_written_once_whatever_its_value(tmp_path: Path, value: float) -> None:
    path = tmp_path / "metrics.jsonl"
    for seconds in (1.0, 2.0):
        metrics = Metrics(path, Silent(), print)
        metrics.log({"loss": value, "seconds": seconds})
        metrics.close()
    assert len(path.read_text().splitlines()) == 1
