"""A method of every kind in a world that nobody here made, with the agent that ships for it: RL,
successes, capabilities, a prompt, tasks of the suite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("minigrid", reason="the extra babyai is not installed")

from trace_bench.__main__ import main

METHODS = ("grpo", "rft", "trace", "training_free_grpo", "untargeted")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_methods_run_in_babyai(name: str, tmp_path: Path) -> None:
    given = [f"method={name}", "env=babyai", "budget=240", "evaluation.limit=8", "checkpoints=[]"]
    few = ["evaluation.yardsticks=false", "evaluation.routing=false"]
    assert main([*given, *few, f"run_dir={tmp_path}"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["complete"] and summary["suite_data"]["data"] == "minigrid 3.2.0"
    rows = {row["name"]: row["success"] for row in summary["table"]}
    assert rows["reference ceiling"] == 1.0 and rows["idle floor"] == 0.0
    assert sum(n for k, n in summary["rollouts"].items() if k != "evaluation") <= 240
