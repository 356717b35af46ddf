"""metrics.jsonl: what a repeated run logs again is not written twice. A tracker that fails."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import trace_bench
from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Tracker
from trace_bench.runner.trackers import MOST_SAID, Metrics, Silent


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


PLAYED = ("method=base", "policy=idle", "evaluation.limit=1", "evaluation.split=dev")


def test_a_line_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for seconds in (1.0, 2.0):
        metrics = Metrics(path, Silent(), print)
        metrics.log({"loss": 0.5, "seconds": seconds})
        metrics.close()
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_reaches_no_file(tmp_path: Path, value: float) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", Silent(), print)
    with pytest.raises(UserError, match=rf"metrics\.jsonl: `loss` would be {value}; allowed: fin"):
        metrics.log({"step": 2, "loss": value})
    assert not (tmp_path / "metrics.jsonl").exists()


class Failing(Tracker):
    """A tracker whose service or disk fails at `at`: log, conclude or close."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.called: list[str] = []

    def log(self, values: Mapping[str, Any]) -> None:
        self._call("log")

    def conclude(self, summary: Mapping[str, Any]) -> None:
        self._call("conclude")

    def close(self) -> None:
        self._call("close")

    def _call(self, name: str) -> None:
        self.called.append(name)
        if name == self.at:
            raise OSError(errno.ENOSPC, "No space\nleft")


@pytest.mark.parametrize("at", ["conclude", "close"])
def test_a_run_says_that_its_tracker_failed(at: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Below its table and in summary.json, and again when the stored result is asked for; the
    result is the same."""
    named = ["tracker=custom", "tracker.factory=test_metrics:Failing", f"tracker.options.at={at}"]
    assert main([*PLAYED, "run_dir=silent"]) == 0
    capsys.readouterr()
    said = "the tracker failed (Failing, OSError: [Errno 28] No space left)"
    for _ in range(2):
        assert main([*PLAYED, *named, "run_dir=run"]) == 0
        printed = capsys.readouterr()
        assert f"{said}; the metrics are in metrics.jsonl" in printed.out.splitlines()
    one, two = (json.loads(Path(n, "summary.json").read_text()) for n in ("silent", "run"))
    assert "No space left" in two["health"].pop("tracker") and not one["health"].pop("tracker")
    assert one["health"] == two["health"] and one["table"] == two["table"]


def test_a_tracker_of_a_run_that_cannot_go_on_is_closed() -> None:
    trace_bench.run(*PLAYED, run_dir="run")
    Path("run/summary.json").unlink()
    Path("run/ledger.jsonl").write_text("damaged\n")
    tracker = Failing("never")
    with pytest.raises(UserError, match=r"ledger\.jsonl"):
        trace_bench.run(*PLAYED, run_dir="run", tracker=tracker)
    assert tracker.called == ["close"]


def test_a_tracker_is_closed_once_and_its_words_are_few(tmp_path: Path) -> None:
    fine = Failing("never")
    metrics = Metrics(tmp_path / "one.jsonl", fine, print)
    metrics.close()
    metrics.close()
    assert fine.called == ["close"] and metrics.failure is None

    class Long(Silent):
        def close(self) -> None:
            raise RuntimeError("x\n" * 10**6)

    long = Metrics(tmp_path / "two.jsonl", Long(), lambda text: None)
    long.close()
    assert long.failure is not None and len(long.failure) < MOST_SAID + 20
    assert "\n" not in long.failure
