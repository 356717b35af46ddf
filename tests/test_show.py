"""Trajectories as a person reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trace_bench.__main__ import main as start
from trace_bench.core.decode import convert
from trace_bench.core.types import Stored, Trajectory
from trace_bench.report import page
from trace_bench.results import inspect
from trace_bench.show import main, render


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
        milestones = trajectory["score"]["milestones"]
        if milestones and trajectory["turns"][0]["reply"].get("tool_calls"):
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


def test_thoughts_are_for_readers_of_logs(folder: Path) -> None:
    line = (folder / "evaluation_trajectories.jsonl").read_text().splitlines()[0]
    stored = convert(json.loads(line), Stored)
    turn = replace(stored.trajectory.turns[0], thoughts="Is wifi on?")
    played = replace(stored.trajectory, turns=(turn,))
    assert "agent thinks: Is wifi on?" in render(replace(stored, trajectory=played), {})
    assert [m["thoughts"] for m in page._messages(played) if "thoughts" in m] == ["Is wifi on?"]
    (said,) = [m["content"] for m in inspect._messages(played) if m["role"] == "assistant"]
    assert said[0] == {"type": "reasoning", "reasoning": "Is wifi on?"}
    assert not any("wifi on?" in str(m) for m in played.messages)


def test_a_conversation_that_is_read_anew_says_so(folder: Path) -> None:
    line = (folder / "evaluation_trajectories.jsonl").read_text().splitlines()[0]
    stored = convert(json.loads(line), Stored)
    first, second = (
        replace(stored.trajectory.turns[0], prompt_ids=ids, token_ids=(4, 5), logprobs=(0.0, 0.0))
        for ids in ((1, 2, 3), (6,))
    )
    played = replace(stored.trajectory, turns=(first, replace(second, kept=2)))
    assert "read anew, after its first 2 tokens" in render(replace(stored, trajectory=played), {})


def test_options_may_stand_anywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main([*words]) == 0
        return capsys.readouterr().out

    task, _ = task_with_calls(folder)
    shown = said(str(folder), task, "--agent", "base")
    assert said(str(folder), "--agent", "base", task) == shown
    assert said("--agent", "base", str(folder), task) == shown


def test_missed_milestones_and_labels_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, trajectory = task_with_calls(folder)
    first = trajectory["score"]["milestones"][0]
    first |= {"similarity": 0.0, "hit": False, "place": None}
    trajectory["score"] |= {"similarity": 0.5, "success": False}
    line = {"call": "analysis", "index": 7, "trajectory": trajectory}
    (folder / "trajectories.jsonl").write_text(json.dumps(line) + "\n")
    labels = {"call": "analysis", "index": 7, "labels": {"converts_values": "LACKING"}}
    (folder / "capabilities.json").write_text(json.dumps({"labels": [labels]}))
    try:
        assert main([str(folder), task, "0"]) == 0
        text = capsys.readouterr().out
        assert f"milestone 0: missed 0.00 at nowhere  {first['name']}" in text
        assert "no success" in text
        assert "converts_values" in text and "LACKING" in text
        assert "  1: 1.00  evaluation/base" in text
    finally:
        (folder / "trajectories.jsonl").unlink()
        (folder / "capabilities.json").unlink()


def stored(score: dict[str, Any]) -> Stored:
    """An episode of a suite that is not this project's, as a run folder has it."""
    user = {"role": "user", "content": "Turn off wifi"}
    said = {"role": "assistant", "content": "Wifi is off."}
    turn = {"messages": [user], "reply": said}
    trajectory = {
        "task": "toolsandbox/official/test/0007", "seed": 3, "agent": "base", "tools": [],
        "turns": [turn], "closing": [], "stop": "done", "score": score, "failure": None,
        "adapter": None,
    }  # fmt: skip
    return Stored("evaluation/base", 0, convert(trajectory, Trajectory))


def test_a_score_with_milestones_needs_no_suite_to_be_read() -> None:
    off = {"name": "SETTING snapshot: wifi=False", "similarity": 1.0, "hit": True, "place": 3,
           "tells": None}  # fmt: skip
    mine = {"name": "call search_lat_lon()", "similarity": 0.2, "hit": True, "place": 4,
            "tells": None}  # fmt: skip
    score = {"similarity": 0.0, "success": False, "details": {"milestone_similarity": 1.0}}
    text = render(stored({**score, "milestones": [off], "minefields": [mine]}), {})
    assert "milestone 0: HIT 1.00 at message 3  SETTING snapshot: wifi=False" in text
    assert "minefield 0: STEPPED ON 0.20 at message 4  call search_lat_lon()" in text


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
    for number in ("5", "\u00b2"):
        assert main([str(folder), task, number]) == 2
        said = f"no episode '{number}' of this task; there are 0 to 0"
        assert said in capsys.readouterr().err


def test_a_folder_without_trajectories_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "holds no trajectories" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a random agent, with successes and failures."""
    place = tmp_path_factory.mktemp("show") / "random"
    arguments = ["method=base", "policy=random", "evaluation.limit=40", f"run_dir={place}"]
    assert start(arguments) == 0
    return place


def listed(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[1:]}


def test_failures_are_listed_alone(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (mixed / "evaluation_trajectories.jsonl").read_text().splitlines()
    stored = [json.loads(line)["trajectory"] for line in lines]
    failed = {t["task"] for t in stored if not t["score"]["success"]}
    assert 0 < len(failed) < len(stored)
    assert main([str(mixed), "--failed", "--agent", "base"]) == 0
    assert listed(capsys.readouterr().out).keys() == failed


def test_a_final_agent_that_is_the_base_agent_has_its_conversations(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(mixed), "--agent", "base"]) == 0
    of_base = capsys.readouterr().out
    assert main([str(mixed), "--agent", "final"]) == 0
    assert capsys.readouterr().out == of_base


def test_tasks_are_listed_by_what_they_need(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = json.loads((mixed / "tasks.json").read_text())
    name = next(iter(sorted(w for words in tags.values() for w in words)))
    assert main([str(mixed), "--capability", name, "--split", "test"]) == 0
    shown = listed(capsys.readouterr().out).keys()
    assert shown == {task for task, words in tags.items() if name in words}


def test_two_agents_are_shown_one_after_the_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (folder / "evaluation_trajectories.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    other = {**last, "call": "evaluation/final"}
    before = (folder / "evaluation_trajectories.jsonl").read_text()
    (folder / "evaluation_trajectories.jsonl").write_text(before + json.dumps(other) + "\n")
    try:
        assert main([str(folder), last["trajectory"]["task"], "--against", "base"]) == 0
        text = capsys.readouterr().out
        assert text.index("call      evaluation/base") < text.index("call      evaluation/final")
    finally:
        (folder / "evaluation_trajectories.jsonl").write_text(before)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (["--agent", "joint"], "evaluation/base"),
        (["--split", "tset"], "toolsandbox/embedded/test"),
        (["--capability", "flying"], "converts_values"),
        (["--against", "base"], "--against needs a task"),
        (["0000", "0", "--against", "base"], "and no number"),
    ],
)
def test_a_filter_that_nothing_passes_says_what_there_is(
    mixed: Path, filters: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(mixed), *filters]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
