"""Which agents of a run are the same under two names, as the final agent is the base agent when
nothing was trained. Their outcomes are copied, their conversations are kept once."""

from __future__ import annotations

from pathlib import Path

from trace_bench.core.lines import Outcome
from trace_bench.core.store import read_lines


def same_agents(folder: Path) -> dict[str, str]:
    """{agent: the one before it in evaluation.jsonl that has the same version}; {} without one."""
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
