"""`report --follow`: runs on a page while they go on, from folders that are not finished."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_data import HOSTILE, poisoned, unpacked

from trace_bench.core.store import Lines
from trace_bench.core.types import Entry, Figures, Outcome, Purpose, StopReason
from trace_bench.report.live import page, unfinished


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


def written(path: Path, kind: type[Any], values: Iterable[Any]) -> None:
    lines = Lines(path, kind)
    for value in values:
        lines.append(value)
    lines.close()


@pytest.mark.slow
def test_two_runs_are_followed_to_their_report(tmp_path: Path, started) -> None:
    runs, out = tmp_path / "runs", tmp_path / "live.html"
    small = ("budget=64", "evaluation.limit=12", "evaluation.yardsticks=false")
    going = [
        started("trace_bench", "method=grpo", f"seed={seed}", *small, f"run_dir={runs / str(seed)}")
        for seed in (0, 1)
    ]
    for seed, run in enumerate(going):
        until_there(runs / str(seed) / "config.yaml", run)
    follower = started("trace_bench.report", runs, "--follow", "--every", "0.1", "--out", out)
    until_there(out, follower)
    seen = set()
    while follower.poll() is None:
        text = out.read_text()
        parts = ("Held-out", "Curve on", "Training", "seed 0", "seed 1")
        seen |= {name for name in parts if name in text}
        time.sleep(0.02)
    assert [run.wait(300) for run in going] == [0, 0] and follower.returncode == 0
    assert {"Held-out", "Curve on", "Training", "seed 0", "seed 1"} <= seen
    assert len(unpacked(out.read_text(), "index")["runs"]) == 2, "the usual report comes last"


def test_ctrl_c_ends_the_page_and_not_the_run(tmp_path: Path, started) -> None:
    """In a folder that has only its settings."""
    out = tmp_path / "live.html"
    (tmp_path / "config.yaml").write_text("budget: 32\n")
    follower = started("trace_bench.report", tmp_path, "--follow", "--every", "0.1", "--out", out)
    until_there(out, follower)
    assert 'http-equiv="refresh"' in out.read_text()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(60) == 130 and follower.stderr.read() == "ended\n"
    text = out.read_text()
    assert "<td>32</td><td>0</td>" in text and 'http-equiv="refresh"' not in text


def test_torn_or_hostile_lines_are_shown_as_far_as_they_go(base_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base_run, run)
    poisoned(run)
    (run / "summary.json").unlink()
    whole = page([run], 5.0)
    assert whole.count("<h4>") == 3 and "<script" not in whole and HOSTILE not in whole
    for path in run.glob("*.jsonl"):
        path.write_bytes(path.read_bytes()[:-20])
    torn = page([run], 5.0)
    assert torn.count("<h4>") == 3 and "corrupt" not in torn
    (run / "evaluation.jsonl").write_text("{}\n" + (run / "evaluation.jsonl").read_text())
    (run / "metrics.jsonl").write_text('{"loss": null, "reward": 1}\n{"loss": "x"}\n[')
    os.mkfifo(run / "ledger.jsonl")
    said = page([run], 5.0)
    assert "line 1 is corrupt" in said and "no plain file" in said and "Training" in said


def test_an_episode_that_was_played_again_counts_once(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("budget: 32\n")
    lost = Outcome("base", "v", None, "t", 0, None, StopReason.ERROR, "user: gone", 0)
    again = replace(lost, score=Figures(True, 1.0), stop=StopReason.DONE, error=None, attempt=1)
    for name in ("evaluation.jsonl", "curve.jsonl"):
        written(tmp_path / name, Outcome, [lost, again])
    row = "<tr><td>base</td><td>1</td><td>1</td><td>1</td></tr>"
    assert page([tmp_path], 5.0).count(row) == 2


def test_each_unfinished_run_is_there_with_its_costs(tmp_path: Path) -> None:
    purposes = (Purpose.ANALYSIS, Purpose.TRAINING, Purpose.TRAINING)
    entries = [
        Entry("call", n, purpose, "t", 0, "v", None, 0.5, False, 9, 1, StopReason.DONE)
        for n, purpose in enumerate(purposes)
    ]
    for name, accounting in (("a", "paper"), ("b", "strict"), ("c", "[x]"), ("finished", "strict")):
        run = tmp_path / "runs" / name
        written(run / "ledger.jsonl", Entry, entries)
        (run / "config.yaml").write_text(f"budget: 32\nseed: 7\naccounting: {accounting}\n")
    answers = [{"role": "analyst", "prompt_tokens": 40, "completion_tokens": 2}, {"role": "user"}]
    written(tmp_path / "runs/a/llm.jsonl", dict, answers)
    (tmp_path / "runs/finished/summary.json").write_text("{}")
    folders = unfinished([tmp_path / "runs", tmp_path / "runs/b"])
    assert [folder.name for folder in folders] == ["a", "b", "c"]
    said = page(folders, 5.0)
    for name, costs in (("a", (2, 1, 27, 42)), ("b", (3, 0, 27, 0)), ("c", (3, 0, 27, 0))):
        cells = "".join(f"<td>{cost}</td>" for cost in (32, *costs, 0))
        assert f"<td>run, seed 7: {tmp_path / 'runs' / name}</td>{cells}" in said
