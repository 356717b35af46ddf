"""`report --follow`: a run's page while it goes on, from folders that are not finished."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from reading import HOSTILE, poisoned, unpacked

from trace_bench.core.store import Lines
from trace_bench.core.types import Entry, Figures, Outcome, Purpose, StopReason
from trace_bench.report.__main__ import main
from trace_bench.report.live import page


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command of the package; what still goes on after the test is killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *map(str, words)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def until_there(path: Path, writer: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert writer.poll() is None, f"it ended without {path}"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_run_is_followed_to_its_report(tmp_path: Path, started) -> None:
    run, out = tmp_path / "run", tmp_path / "live.html"
    options = ("evaluation.limit=24", "evaluation.yardsticks=false", f"run_dir={run}")
    going = started("trace_bench", "method=grpo", "budget=64", *options)
    until_there(run / "config.yaml", going)
    follower = started("trace_bench.report", run, "--follow", "--every", "0.1", "--out", out)
    seen = set()
    until_there(out, follower)
    while follower.poll() is None:
        text = out.read_text()
        seen |= {name for name in ("Held-out", "Curve on", "Rollouts by") if name in text}
        time.sleep(0.02)
    assert going.wait(300) == 0 and follower.returncode == 0
    assert {"Held-out", "Curve on"} <= seen
    assert unpacked(out.read_text(), "index")["runs"], "the usual report comes last"


def test_ctrl_c_ends_the_page_and_not_the_run(tmp_path: Path, started) -> None:
    """In a folder that has only its settings."""
    out = tmp_path / "live.html"
    (tmp_path / "config.yaml").write_text("budget: 32\n")
    follower = started("trace_bench.report", tmp_path, "--follow", "--every", "0.1", "--out", out)
    until_there(out, follower)
    assert "It starts." in out.read_text() and 'http-equiv="refresh"' in out.read_text()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(60) == 130 and follower.stderr.read() == "ended\n"
    assert "It starts." in out.read_text() and 'http-equiv="refresh"' not in out.read_text()


def test_torn_damaged_and_hostile_lines_are_shown_as_far_as_they_go(
    base_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(base_run, run)
    poisoned(run)
    (run / "summary.json").unlink()
    whole = page(run, 5.0)
    assert whole.count("<h3>") == 3 and "<script" not in whole and HOSTILE not in whole
    for path in run.glob("*.jsonl"):
        path.write_bytes(path.read_bytes()[:-20])
    torn = page(run, 5.0)
    assert torn.count("<h3>") == 3 and "corrupt" not in torn
    (run / "evaluation.jsonl").write_text("{}\n" + (run / "evaluation.jsonl").read_text())
    (run / "metrics.jsonl").write_text('{"loss": null, "reward": 1}\n{"loss": "x"}\n[')
    os.mkfifo(run / "ledger.jsonl")
    said = page(run, 5.0)
    assert "line 1 is corrupt" in said and "no plain file" in said and "Training" in said


def test_an_episode_that_was_played_again_counts_once(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("budget: 32\n")
    lost = Outcome("base", "v", None, "t", 0, None, StopReason.ERROR, "user: gone", 0)
    again = replace(lost, score=Figures(True, 1.0), stop=StopReason.DONE, error=None, attempt=1)
    for name in ("evaluation.jsonl", "curve.jsonl"):
        lines = Lines(tmp_path / name, Outcome)
        for outcome in (lost, again):
            lines.append(outcome)
        lines.close()
    row = "<tr><td>base</td><td>1</td><td>1</td><td>1</td></tr>"
    assert page(tmp_path, 5.0).count(row) == 2


def test_rollouts_that_are_not_charged_are_no_part_of_the_budget(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("budget: 32\naccounting: paper\n")
    lines = Lines(tmp_path / "ledger.jsonl", Entry)
    for n, purpose in enumerate((Purpose.ANALYSIS, Purpose.TRAINING, Purpose.TRAINING)):
        lines.append(
            Entry("call", n, purpose, "t", 0, "v", None, 0.5, False, 9, 1, StopReason.DONE)
        )
    lines.close()
    said = page(tmp_path, 5.0)
    assert '<progress value="2" max="32">' in said
    assert "2 rollouts, of a budget of 32, and 1 uncharged; " in said
    (tmp_path / "config.yaml").write_text("budget: 32\naccounting: [x]\n")
    assert "3 rollouts, of a budget of 32; " in page(tmp_path, 5.0)


@pytest.mark.parametrize("more", [["--every", "0"], ["two"]])
def test_what_cannot_be_followed_is_named(
    tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), *more, "--follow"]) == 2
    assert "--follow shows one RUN" in capsys.readouterr().err
    assert main([str(tmp_path), "--follow", "--out", str(tmp_path / "r.html")]) == 2
    assert "has no run (no config.yaml)" in capsys.readouterr().err
