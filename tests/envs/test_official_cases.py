"""Our scorer against the official one, case by case. The official scores stand in
official_cases.json, made by tests/official_cases.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scorer_cases import cases, digest

from trace_bench.envs.toolsandbox.databases import LogEntry
from trace_bench.envs.toolsandbox.goals import read_goal
from trace_bench.envs.toolsandbox.score import score_episode

SOURCE, PYTHON = os.environ.get("TOOLSANDBOX_SOURCE"), os.environ.get("TOOLSANDBOX_PYTHON")
TABLE = json.loads((Path(__file__).parent / "official_cases.json").read_text())
CASES = cases()
NEAR = 2e-6  # the official code computes in 32 bits


def score(case: dict[str, Any]) -> float:
    states = [{name: tuple(rows) for name, rows in s.items()} for s in case["states"]]
    found = score_episode(
        read_goal(case["milestones"], case["edges"]),
        read_goal(case["minefields"], case["minefield_edges"]),
        [LogEntry(*line) for line in case["log"]],
        states,
    )
    return float(found.similarity)


def test_the_scores_belong_to_these_cases() -> None:
    """Otherwise `PYTHON tests/official_cases.py CHECKOUT --write` makes the table again."""
    assert TABLE["cases"] == digest(CASES)
    values = TABLE["scores"].values()
    assert len(values) == len(CASES) > 400 and sum(0 < v < 1 for v in values) > 100
    mined = [c for c in CASES if c["minefields"]]
    assert len(mined) > 50 and sum(TABLE["scores"][c["name"]] > 0 for c in mined) > 20


def test_our_scorer_gives_what_the_official_one_gives() -> None:
    for case in CASES:
        assert score(case) == pytest.approx(TABLE["scores"][case["name"]], abs=NEAR), case["name"]


@pytest.mark.slow
@pytest.mark.skipif(
    not (SOURCE and PYTHON),
    reason="needs a checkout of the official ToolSandbox (TOOLSANDBOX_SOURCE, TOOLSANDBOX_PYTHON)",
)
def test_the_official_scorer_gives_these_scores_again() -> None:
    script = Path(__file__).parents[1] / "official_cases.py"
    command = [str(PYTHON), str(script), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
