"""Reporting rules: which attempts of an episode count, and how lost ones are treated. Every figure
follows one of them and every table names it; figures can be recomputed under another (`results
regrade`), as an evaluation keeps all attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import unknown
from trace_bench.core.store import read_lines
from trace_bench.core.types import Figures, Outcome

DEFAULT = "retry"
RULES = {
    "retry": "a lost episode is played again; what is lost again is left out of the score",
    "exclude": "the first attempt counts; what was lost is left out of the score",
    "zero": "the first attempt counts; what was lost is a failure of the agent",
}

COVERAGE = 0.9  # the share of held-out episodes that must have a score, unless another is given


def check(rule: str) -> str:
    """The rule. Raises UserError for one that does not exist."""
    if rule not in RULES:
        raise unknown("rule", rule, RULES, "rule")
    return rule


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
    """What happened to the episodes: `lost` by boundary, `limits` by what ended them."""
    chosen = counted(lines, "retry" if rule == "retry" else "exclude")
    without = sum(1 for line in chosen if line.lost)
    return {
        "episodes": len(chosen),
        "attempts": len(lines),
        "lost": dict(Counter(o.error.partition(":")[0] for o in lines if o.error)),
        "retried": sum(1 for line in lines if line.attempt) if rule == "retry" else 0,
        "excluded": 0 if rule == "zero" else without,
        "zeroed": without if rule == "zero" else 0,
        "limits": dict(Counter(o.stop.value for o in chosen if o.stop.endswith("_limit"))),
    }


def same_agents(folder: Path) -> dict[str, str]:
    """{agent: the one before it in evaluation.jsonl that has the same version, as the final one is
    the base agent when nothing was trained}; {} without one. Outcomes of such agents are copied,
    their conversations are kept once."""
    path = folder / "evaluation.jsonl"
    if not path.exists():
        return {}
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for line in read_lines(path, Outcome):
        known = first.setdefault(line.version, line.agent)
        if known != line.agent:
            found[line.agent] = known
    return found
