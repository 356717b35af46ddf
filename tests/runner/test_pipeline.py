"""Whole runs with scripted agents in the embedded world: results, resuming, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_bench.__main__ import main
from trace_bench.core.errors import UserError
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite
from trace_bench.runner.plan import training_tasks
from trace_bench.settings.compose import compose

LIMIT = 12
LABELS = ("base", "idle", "random", "reference", "final")


def start(folder: Path, *overrides: str) -> int:
    scripted = ["method=base", "policy=reference", f"evaluation.limit={LIMIT}"]
    return main([*scripted, f"run_dir={folder}", *overrides])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def evaluation(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]


def test_a_run_leaves_everything_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(folder, "checkpoints=[0,640]") == 0
    out = capsys.readouterr().out
    assert out.endswith(f"\nrun: {folder}\n")
    for words in ("idle floor", "random floor", "reference ceiling", "toolsandbox/embedded"):
        assert words in out
    lines = evaluation(folder)
    assert [line["agent"] for line in lines] == [n for n in LABELS for _ in range(LIMIT)]
    assert all(line["score"] == {"success": True, "similarity": 1.0} for line in lines[:LIMIT])
    assert {"task", "trial", "score", "stop", "error", "tokens"} <= lines[0].keys()

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"] is True
    assert (summary["method"], summary["env"], summary["suite"]) == (
        "base",
        "toolsandbox",
        "embedded",
    )
    assert (summary["split"], summary["protocol"]) == ("test", "held_out")
    assert (summary["seed"], summary["budget"]) == (0, 640)
    assert summary["rollouts"] == {"evaluation": 5 * LIMIT + 128}
    assert summary["score"]["success"] == 1.0 and summary["score"]["n"] == LIMIT
    assert summary["base_score"] == summary["score"]
    assert [p["checkpoint"] for p in summary["curve"]] == [0, 640]
    assert summary["wall_s"]["total"] > 0 and summary["versions"]["torch"]
    assert summary["machine"]["processor"]
    assert len(summary["fingerprint"]) == 12 and summary["hashes"]["evaluation.jsonl"]
    idle = next(r for r in summary["table"] if r["name"] == "idle floor")
    assert idle["success"] < 1.0 and idle["difference"]["value"] == idle["success"] - 1.0


def test_a_finished_run_answers_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(folder)
    first = capsys.readouterr().out
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.name != ".lock"}
    assert start(folder) == 0
    said = capsys.readouterr()
    assert said.out == first
    assert "this run is finished" in said.err
    assert before == {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.name != ".lock"}


@pytest.mark.parametrize("kept", [0, 3 * LIMIT + 1])
def test_an_interrupted_evaluation_is_taken_up(
    folder: Path, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    start(folder)
    whole = (folder / "evaluation.jsonl").read_bytes()
    trajectories = (folder / "evaluation_trajectories.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    (folder / "evaluation.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    (folder / "summary.json").unlink()
    capsys.readouterr()
    assert start(folder) == 0
    assert f"resuming {folder}: 0 of 640 rollouts are there" in capsys.readouterr().err
    assert (folder / "evaluation.jsonl").read_bytes() == whole
    assert (folder / "evaluation_trajectories.jsonl").read_bytes() == trajectories


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert "run: " not in said.out
    assert "Traceback" not in said.err
    return said.err.rstrip().splitlines()[-1]


def test_a_folder_of_other_settings_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(folder)
    capsys.readouterr()
    assert start(folder, "seed=4", "env.augmentation=all_tools") == 2
    assert refused(capsys) == (
        f"error: {folder} belongs to a run with other settings: env.augmentation: none -> "
        "all_tools; seed: 0 -> 4. Change `run_dir`, or use the folder's settings."
    )


def test_a_folder_of_someone_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert start(tmp_path) == 2
    assert "is not empty and not a run folder" in refused(capsys)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ledger.jsonl", '{"call": broken}\n{"call": "b"}\n'),
        ("evaluation.jsonl", '{"task": "x"}\n'),
    ],
)
def test_a_corrupt_line_is_named(
    name: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(folder)
    (folder / "summary.json").unlink()
    (folder / name).write_text(line)
    capsys.readouterr()
    assert start(folder) == 2
    assert f"{folder}/{name}, line 1 is corrupt" in refused(capsys)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["checkpoints=[64,1280]"], ["checkpoints=[1280] lie beyond budget=640"]),
        (
            ["method=trace", "budget=100", "policy=local"],
            ["budget=100 is too small for method=trace, which needs at least 160 rollouts",
             "analysis 32", "calibration 32", "training 96", "Raise `budget`"],
        ),
        (
            ["method=grpo", "budget=10", "policy=local"],
            ["has 10 rollouts and needs at least 16"],
        ),
    ],
)  # fmt: skip
def test_a_budget_that_does_not_do_says_what_is_needed(
    settings: list[str], words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(folder, *settings) == 2
    said = refused(capsys)
    assert all(word in said for word in words)


def test_two_processes_do_not_share_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trace_bench.runner.folder import only_writer

    with only_writer(folder):
        assert start(folder) == 2
    assert f"another process is writing {folder}" in refused(capsys)


def test_the_default_folder_is_named_by_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["method=base", "policy=idle", "evaluation.limit=2"]
    assert main(arguments) == 0
    place = capsys.readouterr().out.splitlines()[-1].removeprefix("run: ")
    summary = json.loads((tmp_path / place / "summary.json").read_text())
    assert place == f"runs/toolsandbox/base/{summary['fingerprint']}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


def test_the_protocol_decides_what_is_trained_on() -> None:
    suite = EmbeddedSuite()
    held_out = {task.split for task in training_tasks(compose([]), suite)}
    assert held_out == {"train"}
    few = training_tasks(compose(["env.train_split=train_large", "env.train_tasks=16"]), suite)
    assert [task.id for task in few] == [task.id for task in suite.tasks("train_large")[:16]]
    with pytest.raises(UserError, match=r"env.train_tasks=65 is more .* 1 to 64"):
        training_tasks(compose(["env.train_tasks=65"]), suite)
    paper = training_tasks(compose(["protocol=paper", "evaluation.limit=9"]), suite)
    assert [task.id for task in paper] == [task.id for task in suite.tasks("test")[:9]]


@pytest.mark.parametrize(
    "wrong",
    [
        "env.suite=official",
        "evaluation.split=exam",
        "policy.key_env=NONE policy=openai",
        "budget=3",
    ],
)
def test_a_start_that_fails_leaves_no_folder(
    tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "runs" / "run"
    assert main(["method=grpo", f"run_dir={place}", *wrong.split()]) == 2
    refused(capsys)
    assert list(tmp_path.iterdir()) == []
