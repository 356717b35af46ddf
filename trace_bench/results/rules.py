"""Reporting rules: which attempts of an episode count, and how lost ones are treated. Every figure
follows one of them and every table names it; an evaluation keeps all attempts, so that figures can
be made again under another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from trace_bench.core.types import Figures, Outcome

DEFAULT = "retry"
RULES = {
    "retry": "a lost episode is played again; what is lost again is left out of the score",
    "exclude": "the first attempt counts; what was lost is left out of the score",
    "zero": "the first attempt counts; what was lost is a failure of the agent",
}
BY_KIND = ("lost", "rollouts_lost", "limits")  # the drops that are counts by kind


def counted(lines: Iterable[Outcome], rule: str) -> list[Outcome]:
    """One line per task and trial: the attempt that counts, without a score if it was lost."""
    chosen: dict[tuple[str, int], Outcome] = {}
    for line in lines:
        key = (line.task, line.trial)
        if key not in chosen or (rule == "retry" and line.attempt > chosen[key].attempt):
            chosen[key] = line
    if rule == "zero":
        failed = Figures(success=False, similarity=0.0)
        return [replace(o, score=failed) if o.lost else o for o in chosen.values()]
    return list(chosen.values())


def drops(lines: Sequence[Outcome], rule: str) -> dict[str, Any]:
    """What happened to the episodes, each counted once however often it was attempted: `lost` by
    boundary, `limits` by what ended them."""
    lost = {(o.task, o.trial): o.error.partition(":")[0] for o in lines if o.error}
    again = {(o.task, o.trial) for o in lines if o.attempt}
    chosen = counted(lines, "retry" if rule == "retry" else "exclude")
    without = sum(1 for line in chosen if line.lost)
    return {
        "episodes": len(chosen),
        "attempts": len(lines),
        "lost": dict(Counter(lost.values())),
        "retried": len(again) if rule == "retry" else 0,
        "excluded": 0 if rule == "zero" else without,
        "zeroed": without if rule == "zero" else 0,
        "limits": dict(Counter(o.stop.value for o in chosen if o.stop.endswith("_limit"))),
    }
