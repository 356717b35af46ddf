"""A run's stored episodes, each with what it was run for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.store import read_lines
from trace_bench.core.types import Entry, Stored, Trajectory, grouped

HELD_OUT = "evaluation/"


@dataclass(frozen=True)
class Episode:
    """`group`: the held-out agent ("evaluation/final") or the method's call; `trial`: of the task
    in its group, from 0; `attempt`: how often it had been lost before."""

    group: str
    purpose: str
    index: int
    trial: int
    attempt: int
    trajectory: Trajectory

    @property
    def held_out(self) -> bool:
        return self.group.startswith(HELD_OUT)


def episodes(folder: Path) -> Iterator[Episode]:
    """Every stored episode of a run: held-out ones first, then the method's rollouts."""
    yield from _read(folder, "evaluation_trajectories.jsonl")
    yield from _read(folder, "trajectories.jsonl")


def _read(folder: Path, name: str) -> Iterator[Episode]:
    lines = read_lines(folder / name, Stored)
    purposes = {}
    if name == "trajectories.jsonl":
        ledger = read_lines(folder / "ledger.jsonl", Entry)
        purposes = {(entry.call, entry.index): entry.purpose.value for entry in ledger}
    of_task = grouped(lines, lambda line: (_group(line.call)[0], line.trajectory.task))
    ranks = {key: sorted({line.index for line in some}) for key, some in of_task.items()}
    for line in lines:
        group, attempt = _group(line.call)
        trial = ranks[group, line.trajectory.task].index(line.index)
        purpose = purposes.get((line.call, line.index), "evaluation")
        yield Episode(group, purpose, line.index, trial, attempt, line.trajectory)


def _group(call: str) -> tuple[str, int]:
    """The call without its attempt, and the attempt."""
    group, mark, attempt = call.rpartition("/attempt")
    return (group, int(attempt)) if mark and attempt.isdigit() else (call, 0)
