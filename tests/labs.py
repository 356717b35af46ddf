"""The lab of a run, over players and trainers of a test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_bench.play.rollouts import Player
from trace_bench.runner.lab import RunLab
from trace_bench.runner.ledger import Ledger
from trace_bench.runner.report import Progress
from trace_bench.runner.trackers import Metrics, Silent


def lab_in(
    folder: Path, budget: int, player: Player, trainer: Any = None, kind: Any = RunLab, **more: Any
) -> RunLab:
    """`more`: of a `RunLab`, or of the class of its own that `kind` is."""
    ledger = Ledger(folder / "ledger.jsonl", budget)
    tracker, progress = Metrics(folder / "metrics.jsonl", Silent(), print), Progress(budget)
    parts = {"ledger": ledger, "player": player, "trainer": trainer, "seed": 3, **more}
    lab: RunLab = kind(folder, tracker=tracker, progress=progress, **parts)
    return lab
