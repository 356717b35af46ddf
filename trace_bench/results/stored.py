"""A run's stored episodes, each with what it was run for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trace_bench.core.run_files import TASKS
from trace_bench.core.store import read_if_there, read_lines
from trace_bench.core.summary import Summary
from trace_bench.core.types import Entry, Outcome, Stored, Trajectory, grouped

HELD_OUT = "evaluation/"
# The record: every rollout, every attempt at a held-out task, and what the method concluded.
FILES = (
    "config.yaml", "summary.json", "ledger.jsonl", "trajectories.jsonl", "evaluation.jsonl",
    "evaluation_trajectories.jsonl", "curve.jsonl", "metrics.jsonl", "capabilities.json",
    "agent.json", "tasks.json",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """An episode. `group`: the held-out agent ("evaluation/final") or the method's call; `trial`:
    of the task in its group, from 0; `attempt`: how often it had been lost before."""

    group: str
    purpose: str
    index: int
    trial: int
    attempt: int
    trajectory: Trajectory

    @property
    def held_out(self) -> bool:
        return self.group.startswith(HELD_OUT)


@dataclass(frozen=True)
class FinishedRun:
    folder: Path
    summary: Summary

    @cached_property
    def tags(self) -> Mapping[str, list[str]]:
        """What the held-out tasks need, where the suite says so."""
        return read_if_there(self.folder / TASKS)

    @property
    def name(self) -> str:
        return f"{self.summary.method}-{self.summary.fingerprint}"

    @property
    def suite(self) -> str:
        return self.summary.suite_name or self.summary.world

    def episodes(self) -> Iterator[Exported]:
        """Every stored episode: held-out ones first, then the method's rollouts."""
        yield from self._read("evaluation_trajectories.jsonl")
        yield from self._read("trajectories.jsonl")

    @property
    def files(self) -> list[str]:
        return [name for name in FILES if (self.folder / name).exists()]

    def outcomes(self) -> list[Outcome]:
        """The lines of evaluation.jsonl, also of agents without stored conversations."""
        return read_lines(self.folder / "evaluation.jsonl", Outcome)

    def _read(self, name: str) -> Iterator[Exported]:
        lines = read_lines(self.folder / name, Stored)
        purposes = {}
        if name == "trajectories.jsonl":
            ledger = read_lines(self.folder / "ledger.jsonl", Entry)
            purposes = {(entry.call, entry.index): entry.purpose.value for entry in ledger}
        of_task = grouped(lines, lambda line: (_group(line.call)[0], line.trajectory.task))
        ranks = {key: sorted({line.index for line in own}) for key, own in of_task.items()}
        for line in lines:
            group, attempt = _group(line.call)
            trial = ranks[group, line.trajectory.task].index(line.index)
            purpose = purposes.get((line.call, line.index), "evaluation")
            yield Exported(group, purpose, line.index, trial, attempt, line.trajectory)


def _group(call: str) -> tuple[str, int]:
    """The call without its attempt, and the attempt."""
    group, mark, attempt = call.rpartition("/attempt")
    return (group, int(attempt)) if mark and attempt.isdigit() else (call, 0)
