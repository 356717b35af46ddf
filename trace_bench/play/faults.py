"""Keeps the tracebacks of exceptions that ended episodes, for debugging."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path

from trace_bench.core.store import disk_errors
from trace_bench.core.types import Boundary, Task

MOST = 8  # tracebacks of one start


@dataclass
class Faults:
    """Writes the first tracebacks of a start to `path`, each cause once; those of earlier starts
    are replaced. An error that has none (what a server or a worker reports) is left out."""

    path: Path
    _kinds: set[str] = field(default_factory=set)

    def note(self, task: Task, boundary: Boundary, error: Exception) -> None:
        """Writes the exception's traceback unless one from the same place is there."""
        if error.__traceback__ is None:
            return
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} {place.filename}:{place.lineno}"
        if kind in self._kinds or len(self._kinds) >= MOST:
            return
        text = "".join(traceback.format_exception(error))
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(
                "a" if self._kinds else "w", encoding="utf-8", errors="replace"
            ) as file:
                file.write(f"{task.id}, lost at the boundary {boundary}:\n{text}\n")
        self._kinds.add(kind)

    @property
    def where(self) -> str:
        """The file as the end of a message; empty if this start has written none."""
        return f" Tracebacks: {self.path}." if self._kinds else ""
