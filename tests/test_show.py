"""Trajectories as a person reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_bench.__main__ import main as start
from trace_bench.show import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("show") / "run"
    arguments = ["method=base", "policy=reference", "evaluation.limit=40", f"run_dir={place}"]
    assert start(arguments) == 0
    return place


def task_with_calls(folder: Path) -> tuple[str, dict]:
    """A task with a reference trajectory of at least one call, and its stored trajectory."""
    for line in (folder / "evaluation_trajectories.jsonl").read_text().splitlines():
        trajectory = json.loads(line)["trajectory"]
        details = trajectory["score"]["details"]
        if details["milestones"] and trajectory["turns"][0]["reply"].get("tool_calls"):
            return trajectory["task"], trajectory
    raise AssertionError("no task with calls among the first 40")


def test_without_a_task_every_task_is_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 41
    assert lines[1].split()[1:] == ["1", "1", "1.00", "evaluation/base"]


def test_a_conversation_is_readable(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, trajectory = task_with_calls(folder)
    assert main([str(folder), "/".join(task.split("/")[-2:])]) == 0
    text = capsys.readouterr().out
    call = trajectory["turns"][0]["reply"]["tool_calls"][0]["function"]["name"]
    for words in (task, "system:", "user:", f"agent calls:  {call}(", "result:", "score     1.000"):
        assert words in text
    assert "milestone 0: HIT 1.00 at message" in text
    assert "missed" not in text


def test_missed_milestones_and_labels_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, trajectory = task_with_calls(folder)
    details = trajectory["score"]["details"]
    details["milestones"][0] = {"score": 0.0, "message": None}
    trajectory["score"] = {"similarity": 0.5, "success": False, "details": details}
    line = {"call": "analysis", "index": 7, "trajectory": trajectory}
    (folder / "trajectories.jsonl").write_text(json.dumps(line) + "\n")
    labels = {"call": "analysis", "index": 7, "labels": {"converts_values": "LACKING"}}
    (folder / "capabilities.json").write_text(json.dumps({"labels": [labels]}))
    try:
        assert main([str(folder), task, "0"]) == 0
        text = capsys.readouterr().out
        assert "milestone 0: missed 0.00 at nowhere" in text
        assert "no success" in text
        assert "converts_values" in text and "LACKING" in text
        assert "  1: 1.00  evaluation/base" in text
    finally:
        (folder / "trajectories.jsonl").unlink()
        (folder / "capabilities.json").unlink()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["test/9999"], "no episode of a task 'test/9999'"),
        (["test/0000x"], "there are: toolsandbox/embedded/test/"),
    ],
)
def test_an_unknown_task_is_refused(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_episode_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, _ = task_with_calls(folder)
    assert main([str(folder), task, "5"]) == 2
    assert "no episode '5' of this task; there are 0 to 0" in capsys.readouterr().err


def test_a_folder_without_trajectories_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "holds no trajectories" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err
