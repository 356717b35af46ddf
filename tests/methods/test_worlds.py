"""Every method in a world that nobody here made, with the agent that ships for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shared import needs

from trace_bench.__main__ import main
from trace_bench.settings.choices import parts
from trace_bench.settings.registry import OWN

pytestmark = needs("minigrid", "the extra babyai is not installed")

ALIKE = {"base", "rl", "joint", "single_capability"}  # they are in grpo's and trace's runs
METHODS = sorted(OWN["method"].keys() - ALIKE)
SHORT: dict[str, Any] = {
    "env": "babyai", "env.levels": "[UnlockLocal,OpenDoor]", "env.steps": 20, "budget": 32,
    "env.train_tasks": 16, "trainer.groups": 2, "trainer.group_size": 4, "evaluation.limit": 2,
    "checkpoints": "[]", "evaluation.yardsticks": "false", "evaluation.routing": "false",
}  # fmt: skip
FEW = {
    "analysis_minimum": 16, "runs": 2, "keep_runs": 1, "minimum_support": 0,
    "coverage": 0, "gap": 0, "synthetic_tasks": 4, "calibration_rounds": 0, "minimum_training": 8,
    "tasks": 4, "validation": 4, "minibatch": 4, "demonstrations": 8,
}  # fmt: skip
"""Method settings with which one iteration of each is cheap, where a method has them."""


@pytest.mark.slow
def test_every_method_runs_in_babyai(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In short episodes of two levels: one iteration of each, and what it trained or wrote."""
    trained, advised = set(), set()
    for name in METHODS:
        (part,) = parts("method", name)
        own = {f"method.{key}": v for key, v in FEW.items() if key in part.parameters()}
        given = {"method": name, **SHORT, **own, "run_dir": tmp_path / name}
        done = main([f"{key}={value}" for key, value in given.items()])
        if name == "cm2":  # it needs checklists, which no score of this world has
            assert done != 0 and "checklists" in capsys.readouterr().err
            continue
        assert done == 0, (name, capsys.readouterr().err)
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["complete"] and summary["suite_data"]["data"] == "minigrid 3.2.0"
        played = sum(n for kind, n in summary["rollouts"].items() if kind != "evaluation")
        assert played <= 32 and (played > 0) == (name != "sft"), name
        agent = json.loads((tmp_path / name / "agent.json").read_text())
        trained |= {name} if agent["adapters"] else set()
        advised |= {name} if agent["prompt"] else set()
        if name == "prompt_only":  # whether it finds a lack, too, depends on those few episodes
            report = json.loads((tmp_path / name / "capabilities.json").read_text())
            assert agent["prompt"] == "\n".join(report["outcome"]["prompt"])
    # Whether the others do depends on what a few episodes happen to earn.
    assert {"grpo", "placebo", "sft"} <= trained and "ace" in advised
