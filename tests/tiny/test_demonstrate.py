"""Demonstrations as a file: what a line holds, tasks that the suite makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.methods.sft import others
from trace_bench.tiny import MadeSettings, World
from trace_bench.tiny.__main__ import main
from trace_bench.tiny.tasks import Tasks

DESK = Path(__file__).parents[2] / "examples" / "desk.py"
DESK_WORLD = ["demonstrate", "env.factory=desk:Suite"]
WORLD = [*DESK_WORLD, "count=24"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DESK, tmp_path)
    monkeypatch.chdir(tmp_path)


def talks(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_line_is_read_with_its_own_tools_and_without_the_mistakes() -> None:
    assert main([*WORLD, "out=shown/desk.jsonl"]) == 0
    written = talks("shown/desk.jsonl")
    read = list(others(Path("shown"), 99, print))
    assert len(read) == len(written) == 24
    for shown, talk in zip(read, written, strict=True):
        agent = [m for m in talk["messages"] if m["role"] == "assistant"]
        assert shown.learned == tuple(m["weight"] == 1 for m in agent)
        assert [dict(tool) for tool in shown.tools] == talk["tools"]
    assert not all(own for shown in read for own in shown.learned)
    before = Path("shown/desk.jsonl").read_bytes()
    assert main([*WORLD, "out=shown/desk.jsonl"]) == 0
    assert Path("shown/desk.jsonl").read_bytes() == before


def test_every_second_task_is_the_suites_own() -> None:
    suite = EmbeddedSuite()
    train = suite.tasks("train")
    asked = MadeSettings(split="train", demonstrations=30, synthetic=True)
    shown = [demonstration.task for demonstration in Tasks(World(suite), asked).in_turn("n")]
    ids = {task.id for task in train}
    assert {task in ids for task in shown} == {True, False}


REFUSED = [
    (["out=x.jsonl", "split=dev"], "no demonstration may be of a held-out task"),
    (["out=x.jsonl", "count=0"], "count=0 is not allowed"),
    ([], "`out` is missing"),
    (["out=x.jsonl", "synthetic=perhaps"], "synthetic='perhaps' is not allowed"),
]


@pytest.mark.parametrize(("more", "said"), REFUSED)
def test_what_cannot_be_is_refused(more: list[str], said: str, capsys: Any) -> None:
    assert main([*DESK_WORLD, *more]) == 2
    assert said in capsys.readouterr().err
    assert not Path("x.jsonl").exists()
