"""Reads what verl's processes write: episodes, metrics, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trace_bench.store import read_lines
from trace_bench.types import Trajectory, trajectory_from_json


class Arrivals:
    """Episodes, from files that several processes append to while this one reads. An episode that
    is there twice (two processes, one of them killed) is given once, as it was first found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}
        self._there: dict[str, dict[int, Mapping[str, Any]]] = {}

    def take(self, call: str, wanted: set[int]) -> Iterator[tuple[int, Trajectory]]:
        """Those of the wanted episodes that are there, by index; each is given once."""
        self._look()
        there = self._there.get(call, {})
        for index in sorted(wanted & there.keys()):
            yield index, trajectory_from_json(there.pop(index))

    def _look(self) -> None:
        for path in sorted(self.folder.glob("*.jsonl")):
            start = self._read.get(path, 0)
            if path.stat().st_size == start:
                continue
            with path.open("rb") as file:
                file.seek(start)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    start += len(line)
                    value = json.loads(line)
                    self._there.setdefault(value["call"], {}).setdefault(
                        value["index"], value["trajectory"]
                    )
            self._read[path] = start


class Steps:
    """verl's metrics by step (1 is the first), over all its starts: the latest wins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def starts(self) -> int:
        """How often verl was started here."""
        return len(list(self.folder.glob("metrics-*.jsonl")))

    def of(self, step: int) -> dict[str, Any] | None:
        """A step's metrics, once there."""
        for path in sorted(self.folder.glob("metrics-*.jsonl"), reverse=True):
            for line in read_lines(path):
                if line["step"] == step and "actor/pg_loss" in line["data"]:
                    return dict(line["data"])
        return None

    def saved(self) -> int:
        """The step of the last whole checkpoint; 0 when there is none."""
        path = self.folder / "checkpoints" / "latest_checkpointed_iteration.txt"
        try:
            return int(path.read_text())
        except (FileNotFoundError, ValueError):  # absent, or being written
            return 0
