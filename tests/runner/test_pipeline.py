"""Whole runs with scripted agents in the embedded world: results, resuming, bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines, read_object
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.runner.plan import training_tasks
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import only_writer

LIMIT = 12
LABELS = ("base", "idle", "random", "reference", "final")
SCRIPTED = ("method=base", "policy=reference", f"evaluation.limit={LIMIT}", "checkpoints=[0,640]")
Said = pytest.CaptureFixture[str]


def start(folder: Path, *overrides: str) -> int:
    return main([*SCRIPTED, f"run_dir={folder}", *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert start(folder) == 0
    return folder


def times(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.name != ".lock"}


def refused(capsys: Said) -> str:
    said = capsys.readouterr()
    assert "run: " not in said.out
    assert "Traceback" not in said.err
    return said.err.rstrip().splitlines()[-1]


def test_a_run_leaves_everything_behind(finished: Path) -> None:
    lines = read_lines(finished / "evaluation.jsonl")
    assert [line["agent"] for line in lines] == [n for n in LABELS for _ in range(LIMIT)]
    assert all(line["score"] == {"success": True, "similarity": 1.0} for line in lines[:LIMIT])
    summary: dict[str, Any] = json.loads((finished / "summary.json").read_text())
    expected = {
        "complete": True, "method": "base", "env": "toolsandbox", "suite": "embedded",
        "split": "test", "protocol": "held_out", "seed": 0, "budget": 640,
        "spent": 0, "unspent": 640, "why_unspent": "the method plays none",
        "rollouts": {"evaluation": 5 * LIMIT + 128},
    }  # fmt: skip
    assert {key: summary[key] for key in expected} == expected
    assert summary["score"]["success"] == 1.0 and summary["score"]["n"] == LIMIT
    assert summary["base_score"] == summary["score"]
    assert [p["checkpoint"] for p in summary["curve"]] == [0, 640]
    assert summary["wall_s"]["total"] > 0 and summary["versions"]["torch"]
    assert summary["machine"]["processor"]
    assert len(summary["fingerprint"]) == 12 and summary["hashes"]["evaluation.jsonl"]
    idle = next(r for r in summary["table"] if r["name"] == "idle floor")
    assert idle["success"] < 1.0 and idle["difference"]["value"] == idle["success"] - 1.0


def test_a_base_agent_that_earns_nothing_is_told_of_at_first(tmp_path: Path, capsys: Said) -> None:
    words = ["method=base", "policy=idle", "env.factory=toy:ToySuite", "env.dev_split=train"]
    words += ["evaluation.split=train", "protocol=paper", "evaluation.limit=4"]
    assert main([*words, f"run_dir={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr().err
    assert 0 < said.index("earned 0 in all 4 held-out") < said.index("evaluation of idle")


def test_a_finished_run_answers_at_once(finished: Path, capsys: Said) -> None:
    before = times(finished)
    assert start(finished) == 0
    said = capsys.readouterr()
    for words in ("idle floor", "random floor", "reference ceiling", "toolsandbox/embedded"):
        assert words in said.out
    assert said.out.endswith(f"\nrun: {finished}\n") and "this run is finished" in said.err
    assert times(finished) == before


@pytest.mark.parametrize("kept", [0, 3 * LIMIT + 1])
def test_an_evaluation_is_taken_up(finished: Path, tmp_path: Path, kept: int, capsys: Said) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    lines = (finished / "evaluation.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "evaluation.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    (folder / "summary.json").unlink()
    here = (folder / "code.jsonl").read_text()
    (folder / "code.jsonl").write_text('"other"\n' if kept else here)
    assert start(folder) == 0
    said = capsys.readouterr().err
    assert f"resuming {folder}: 0 of 640 rollouts are there" in said
    assert ("other code of trace_bench has begun this run" in said) == bool(kept)
    code = read_object(folder / "summary.json")["code"]
    assert code == [*(["other"] if kept else []), here.strip('"\n')]
    for name in ("evaluation.jsonl", "evaluation_trajectories.jsonl"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()


def test_a_folder_of_another_run_is_refused(finished: Path, tmp_path: Path, capsys: Said) -> None:
    assert start(finished, "seed=4", "env.augmentation=all_tools") == 2
    assert refused(capsys) == (
        f"error: {finished} belongs to a run with other settings: env.augmentation: none -> "
        "all_tools; seed: 0 -> 4. Change `run_dir`, or use the folder's settings."
    )
    with only_writer(tmp_path / "run"):
        assert start(tmp_path / "run") == 2
    assert f"another process is writing {tmp_path / 'run'}" in refused(capsys)
    (tmp_path / "notes.txt").write_text("mine")
    assert start(tmp_path) == 2
    assert "is not empty and not a run folder" in refused(capsys)


def test_the_default_folder_is_named_by_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["method=base", "policy=idle", "evaluation.limit=2", "evaluation.split=dev"]) == 0
    place = capsys.readouterr().out.splitlines()[-1].removeprefix("run: ")
    summary = json.loads((tmp_path / place / "summary.json").read_text())
    assert place == f"runs/toolsandbox/base/{summary['fingerprint']}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


def test_the_protocol_decides_what_is_trained_on() -> None:
    suite = EmbeddedSuite()
    assert {task.split for task in training_tasks(compose([]), suite)} == {"train"}
    other = ["env.train_split=dev", "env.dev_split=train", "env.train_tasks=16"]
    few = training_tasks(compose(other), suite)
    assert [task.id for task in few] == [task.id for task in suite.tasks("dev")[:16]]
    with pytest.raises(UserError, match=r"env.train_tasks=65 is more .* 1 to 64"):
        training_tasks(compose(["env.train_tasks=65"]), suite)
    paper = training_tasks(compose(["protocol=paper", "evaluation.limit=9"]), suite)
    assert [task.id for task in paper] == [task.id for task in suite.tasks("test")[:9]]
