"""Reads what verl's processes write: episodes, metrics, checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core.store import parse_line, read_lines, write_text
from trace_bench.core.types import Count, Stored, Trajectory

LATEST = "latest_checkpointed_iteration.txt"


class Arrivals:
    """Reads episodes from files to which several processes append. If an episode occurs twice (two
    processes, one of them killed), the first one counts. Raises UserError for a foreign line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, tuple[int, int]] = {}  # bytes and lines of each file
        self._there: dict[str, dict[int, Trajectory]] = {}
        self._known: dict[str, set[int]] = {}

    def forget(self) -> None:
        for kept in (self._read, self._there, self._known):
            kept.clear()

    def known(self, call: str) -> frozenset[int]:
        """The indices of a call's episodes that are in the files."""
        self._look()
        return frozenset(self._known.get(call, ()))

    def take(self, call: str, wanted: set[int]) -> Iterator[tuple[int, Trajectory]]:
        """The wanted episodes that have arrived, by index; each is returned once."""
        self._look()
        there = self._there.get(call, {})
        for index in sorted(wanted & there.keys()):
            yield index, there.pop(index)

    def _look(self) -> None:
        for path in sorted(self.folder.glob("*.jsonl")):
            start, number = self._read.get(path, (0, 0))
            if path.stat().st_size == start:
                continue
            with path.open("rb") as file:
                file.seek(start)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # an incomplete line: still being written
                    start, number = start + len(line), number + 1
                    found = parse_line(line, path, number, Stored)
                    self._known.setdefault(found.call, set()).add(found.index)
                    of_call = self._there.setdefault(found.call, {})
                    of_call.setdefault(found.index, found.trajectory)
            self._read[path] = start, number


@dataclass(frozen=True)
class OfStep:
    """A line of verl's metrics."""

    step: Count
    data: dict[str, Any]


class StepFiles:
    """verl's metrics by step (from 1) over all its starts; the latest start wins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def starts(self) -> int:
        """How often verl was started in this folder, judged by its files."""
        names = [path.stem for path in self.folder.glob("metrics-*.jsonl")]
        return max((int(name.rpartition("-")[2]) + 1 for name in names), default=0)

    def of(self, step: int) -> dict[str, Any] | None:
        """A step's metrics; None until they are written."""
        for path in sorted(self.folder.glob("metrics-*.jsonl"), reverse=True):
            for line in read_lines(path, OfStep):
                if line.step == step and "actor/pg_loss" in line.data:
                    return line.data
        return None

    def repair(self) -> None:
        """Repairs the file that names the last checkpoint. verl does not replace it atomically, so
        a kill may leave it empty, and verl would not start; or the checkpoint was removed because
        it was damaged. Then it is set to the last complete checkpoint (the one whose dataloader
        state, written last, exists) or removed."""
        if self._latest.exists() and self.saved() not in (complete := self._complete()):
            self._name_last(complete)

    def back_to(self, most: int) -> None:
        """Makes the last checkpoint after at most so many steps the last one of all."""
        if self.saved() > most:
            self._name_last([step for step in self._complete() if step <= most])
        for place in self._latest.parent.glob("global_step_*"):
            if step_of(place) > most:
                shutil.rmtree(place)

    def _complete(self) -> list[int]:
        """The steps of the complete checkpoints, in no order."""
        return [step_of(path.parent) for path in self._latest.parent.glob("global_step_*/data.pt")]

    def _name_last(self, steps: Sequence[int]) -> None:
        if steps:
            write_text(self._latest, str(max(steps)))
        else:
            self._latest.unlink()

    @property
    def _latest(self) -> Path:
        return self.folder / "checkpoints" / LATEST

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after so many steps."""
        return self._latest.parent / f"global_step_{step}"

    def saved(self) -> int:
        """The step of the last complete checkpoint; 0 if there is none."""
        try:
            return int(self._latest.read_text())
        except (FileNotFoundError, ValueError):  # absent, or being written
            return 0


def step_of(checkpoint: Path) -> int:
    """The number of steps after which verl saved a checkpoint, from the name of its folder."""
    return int(checkpoint.name.rpartition("_")[2])
