"""The two worlds of results/transfer as one suite, as the experiment uses it."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest
from forks import forked_in

TOGETHER = Path(__file__).resolve().parents[2] / "results" / "transfer" / "together.py"
FACTORY = "env.factory=together:Suite"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    shutil.copy(TOGETHER, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_it_keeps_the_contract(here: Path) -> None:
    code, said = forked_in(here, "trace_bench.check", FACTORY, "limit=8")
    assert code == 0 and "FAILED" not in said
    assert "its solution solves it from anywhere" in said
    assert "mean similarity: reference 1.000" in said


@pytest.mark.slow
def test_one_world_may_be_trained_on_and_both_are_measured(monkeypatch) -> None:
    monkeypatch.syspath_prepend(TOGETHER.parent)
    together = importlib.import_module("together")
    suite, both = together.Suite(["lakes"]), together.Suite()
    tasks = {split: suite.tasks(split) for split in suite.splits()}
    ids = {task.id for task in both.tasks("train")}
    assert {task.id for task in tasks["train"]} < ids and tasks["test"] == both.tasks("test")
    assert both.task("together/test/babyai/0000") == both.tasks("test")[0]
    worlds = {split: [t.data["world"] for t in some] for split, some in tasks.items()}
    assert set(worlds["train"]) == {"lakes"}
    for split in ("demo", "dev", "test"):
        assert worlds[split] == ["babyai", "lakes"] * (len(worlds[split]) // 2)


def test_a_world_that_is_not_there_is_named(here: Path) -> None:
    code, said = forked_in(here, "trace_bench", FACTORY, "env.options.learn=[sea]")
    assert code == 2 and "['sea']; allowed: some of ['babyai', 'lakes']" in said
