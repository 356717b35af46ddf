"""One run gives its whole curve: a point is what a run with that budget gives, or it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trace_bench.__main__ import main
from trace_bench.core.protocols import RunContext
from trace_bench.runner.build import run_context
from trace_bench.runner.plan import plan_of
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of

SMALL = ["evaluation.limit=4", "evaluation.yardsticks=false"]
SMALL += ["env.dev_split=train", "evaluation.split=dev"]
PAPER = [*SMALL, "protocol=paper"]  # the dev split is the small training split here, for speed


def run(folder: Path, *settings: str) -> dict[str, Any]:
    assert main([*PAPER, f"run_dir={folder}", *settings]) == 0
    return json.loads((folder / "summary.json").read_text())


METHODS = [
    pytest.param(["method=grpo", "trainer.decay=constant"], marks=pytest.mark.slow, id="grpo"),
    pytest.param(["method=base", "policy=reference"], id="base"),
]


@pytest.mark.parametrize("method", METHODS)
def test_a_point_equals_a_run_of_its_own(method: list[str], tmp_path: Path) -> None:
    long = run(tmp_path / "long", *method, "budget=128", "checkpoints=[64,100,128]")
    short = run(tmp_path / "short", *method, "budget=64", "checkpoints=[64]")
    points = {p["checkpoint"]: p for p in long["curve"]}
    assert points[64] == short["curve"][0]
    assert points[100]["rollouts"] <= 100  # never an agent that spent more than the point says


def caveat(*overrides: str) -> str | None:
    settings = compose([*overrides])
    parts = parts_of(settings)
    trainer = parts["trainer"].make(run_context(settings, parts))
    return plan_of(settings, parts["method"].make(RunContext()), trainer, 64).caveat


@pytest.mark.parametrize(
    ("more", "equal", "other", "why"),
    [
        (["method=grpo"], "320,960,1000", "250,1000", "between iterations of 32 rollouts"),
        (
            ["method=grpo", "trainer=verl", "trainer.save_every=3"],
            "96,960,1000", "64,1000", "trainer.save_every=3",
        ),
    ],
)  # fmt: skip
def test_points_between_iterations_or_checkpoints_are_not_called_equal(
    more: list[str], equal: str, other: str, why: str
) -> None:
    given = [*more, "trainer.decay=constant", "budget=1000"]
    assert caveat(*given, f"checkpoints=[{equal}]") is None
    assert why in (caveat(*given, f"checkpoints=[{other}]") or "")


CAVEATS = [
    ("trace", "shares of the whole budget"),
    ("gepa", "might not fit"),
    ("grpo", "trainer.decay=linear"),
]


@pytest.mark.parametrize(("method", "why"), CAVEATS)
def test_where_it_does_not_hold_it_says_so(method: str, why: str) -> None:
    assert why in (caveat(f"method={method}") or "")
