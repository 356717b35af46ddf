"""Runs for tests of tables that need none of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from trace_bench.results.run import Drops, Run, as_line, run_of

SETTINGS = {
    "env.name": "toolsandbox",
    "env.suite": "embedded",
    "env.train_tasks": None,
    "evaluation.split": "test",
    "evaluation.trials": 1,
    "protocol": "held_out",
}


def record(method: str, success: Sequence[float | None], seed: int = 0, budget: int = 640) -> Run:
    return Run(
        method=method,
        budget=budget,
        seed=seed,
        settings=SETTINGS,
        method_settings={},
        rollouts={"training": budget - 40, "evaluation": 9},
        tasks="t",
        success=tuple(success),
        base=tuple(success),
        similarity=0.5,
        tokens=1000,
        drops=Drops(episodes=len(success), lost={"environment": 2}),
        floors={"idle": 0.25, "reference": 1.0},
        wall_s={"method": 2.0},
        fingerprint=f"{method}{seed}{budget}",
    )


def again(run: Run) -> Run:
    """The run as it is read from a file of records."""
    return run_of(json.loads(as_line(run)))


def filed(runs: Iterable[Run], path: Path) -> str:
    """A file of records of these runs."""
    path.write_text("".join(map(as_line, runs)))
    return str(path)
