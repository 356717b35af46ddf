"""Where metrics go. `jsonl` appends them to metrics.jsonl in the run folder.

A resumed run repeats its finished steps from disk and would log them again, so a line that is
there already is not written twice. Values that depend on the clock do not make a line another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from trace_bench.core.store import Lines, canonical
from trace_bench.settings.schema import TrackerSettings

CLOCK_WORDS = ("wall", "second", "_s", "per_s", "time")
"""A metric whose name ends in one of these depends on the machine's speed."""


class Tracker(Protocol):
    """Takes the metrics of a run, in order."""

    def log(self, values: Mapping[str, Any]) -> bool: ...  # False: was there already
    def conclude(self, summary: Mapping[str, Any]) -> None: ...  # the run is finished
    def close(self) -> None: ...


class JsonlTracker:
    """metrics.jsonl, one line per call of `log`."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        self._there = Counter(_key(line) for line in self._lines.existing)
        self._lines.existing.clear()

    def log(self, values: Mapping[str, Any]) -> bool:
        key = _key(values)
        if self._there[key] > 0:
            self._there[key] -= 1
            return False
        self._lines.append(dict(values))
        return True

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Nothing: summary.json stands beside the metrics."""

    def close(self) -> None:
        self._lines.close()


def make_tracker(settings: TrackerSettings, folder: Path, config: Mapping[str, Any]) -> Tracker:
    """The tracker that was chosen; `config` is what identifies the run, shown beside its curves."""
    lines = JsonlTracker(folder / "metrics.jsonl")
    if settings.name == "jsonl":
        return lines
    from trace_bench.trackers.wandb import WandbTracker

    return WandbTracker(lines, settings.project, settings.mode, folder, config)


def _key(values: Mapping[str, Any]) -> str:
    """What makes two lines the same one."""
    return canonical({k: _finite(v) for k, v in values.items() if not k.endswith(CLOCK_WORDS)})


def _finite(value: Any) -> Any:
    """NaN has no canonical JSON; it stands for itself by name."""
    return str(value) if isinstance(value, float) and value != value else value
