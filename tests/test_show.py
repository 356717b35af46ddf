"""Trajectories as a person reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trace_bench.core.decode import convert
from trace_bench.core.store import read_json, read_lines
from trace_bench.core.types import Stored, Trajectory
from trace_bench.report import page
from trace_bench.results import inspect
from trace_bench.show import main, render

Said = pytest.CaptureFixture[str]


def held_out(run: Path, agent: str = "base") -> list[Stored]:
    lines = read_lines(run / "evaluation_trajectories.jsonl", Stored)
    return [line for line in lines if line.call == f"evaluation/{agent}"]


def listed(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()[1:]}


def test_every_task_is_listed_and_filtered(trace_run: Path, capsys: Said) -> None:
    """By agent and success."""

    def said(*words: str) -> dict[str, list[str]]:
        assert main([str(trace_run), *words]) == 0
        return listed(capsys.readouterr().out)

    base = {e.trajectory.task: e.trajectory for e in held_out(trace_run)}
    wins = {name: played.score.success for name, played in base.items() if played.score}
    assert 0 < sum(wins.values()) < len(wins)
    every = said()
    assert base.keys() < every.keys()
    of_base = said("--agent", "base")
    assert {name: bool(int(row[1])) for name, row in of_base.items()} == wins
    assert of_base[next(iter(base))][0::3] == ["1", "evaluation/base"]
    failed = said("--failed", "--agent", "base")
    assert failed.keys() == {name for name, won in wins.items() if not won}


def test_a_conversation_is_readable(trace_run: Path, capsys: Said) -> None:
    """Options may stand anywhere."""
    talks = [e.trajectory for e in held_out(trace_run)]
    called = (t for t in talks if t.turns[0].reply["tool_calls"])
    played = next(t for t in called if t.score and t.score.milestones and t.score.success)
    name = "/".join(played.task.split("/")[-2:])
    assert main(["--agent", "base", str(trace_run), name]) == 0
    text = capsys.readouterr().out
    call = played.turns[0].reply["tool_calls"][0]["function"]["name"]
    for words in (
        played.task, "system:", "user:", f"agent calls:  {call}(", "result:", "score     1.000",
        "milestone 0: HIT 1.00 at message",
    ):  # fmt: skip
        assert words in text
    assert "missed" not in text
    assert main([str(trace_run), name, "--agent", "base"]) == 0
    assert capsys.readouterr().out == text


def test_labels_and_all_episodes_of_a_task_are_named(trace_run: Path, capsys: Said) -> None:
    rows = read_json(trace_run / "capabilities.json")["labels"]
    row = next(r for r in rows if "LACKING" in r["labels"].values())
    assert main([str(trace_run), row["task"], "--agent", "analysis", "0"]) == 0
    text = capsys.readouterr().out
    assert "LACKING" in text and "(no success)" in text
    assert main([str(trace_run), held_out(trace_run)[0].trajectory.task, "0"]) == 0
    assert "episode 0 of 0 to 1 of this task; add a number to see" in capsys.readouterr().out


def test_a_final_agent_that_is_the_base_agent_has_its_talks(base_run: Path, capsys: Said) -> None:
    assert main([str(base_run), "--agent", "base"]) == 0
    of_base = capsys.readouterr().out
    assert main([str(base_run), "--agent", "final"]) == 0
    assert capsys.readouterr().out == of_base


def test_thoughts_are_for_readers_of_logs(base_run: Path) -> None:
    first = held_out(base_run)[0]
    turn = replace(first.trajectory.turns[0], thoughts="Is wifi on?")
    played = replace(first.trajectory, turns=(turn,))
    assert "agent thinks: Is wifi on?" in render(replace(first, trajectory=played), {})
    assert [m["thoughts"] for m in page._messages(played) if "thoughts" in m] == ["Is wifi on?"]
    (said,) = [m["content"] for m in inspect._messages(played) if m["role"] == "assistant"]
    assert said[0] == {"type": "reasoning", "reasoning": "Is wifi on?"}
    assert not any("wifi on?" in str(m) for m in played.messages)


def test_a_conversation_that_is_read_anew_says_so(base_run: Path) -> None:
    first = held_out(base_run)[0]
    turns = (
        replace(first.trajectory.turns[0], prompt_ids=ids, token_ids=(4, 5), logprobs=(0.0, 0.0))
        for ids in ((1, 2, 3), (6,))
    )
    one, two = turns
    played = replace(first.trajectory, turns=(one, replace(two, kept=2)))
    assert "read anew, after its first 2 tokens" in render(replace(first, trajectory=played), {})


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
    gone = {**off, "hit": False, "similarity": 0.0, "place": None}
    mine = {"name": "call search_lat_lon()", "similarity": 0.2, "hit": True, "place": 4,
            "tells": None}  # fmt: skip
    score = {"similarity": 0.0, "success": False, "details": {"milestone_similarity": 1.0}}
    text = render(stored({**score, "milestones": [off, gone], "minefields": [mine]}), {})
    assert "milestone 0: HIT 1.00 at message 3  SETTING snapshot: wifi=False" in text
    assert "milestone 1: missed 0.00 at nowhere  SETTING" in text
    assert "minefield 0: STEPPED ON 0.20 at message 4  call search_lat_lon()" in text


MISSING = [
    (["test/9999"], "no episode of a task 'test/9999'"),
    (["test/0000x"], "there are: toolsandbox/embedded/"),
    (["test/0000", "5"], "no episode '5' of this task; there are 0 to 0"),
    (["test/0000", "\u00b2"], "no episode '\u00b2' of this task"),
    (["--agent", "joint"], "evaluation/base"),
]


@pytest.mark.parametrize(("words", "why"), MISSING)
def test_what_is_missing_is_said(words: list[str], why: str, base_run: Path, capsys: Said) -> None:
    assert main([str(base_run), *words]) == 2
    said = capsys.readouterr().err
    assert why in said and said.count("\n") == 1
