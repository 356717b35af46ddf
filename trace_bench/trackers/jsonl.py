"""Writes metrics to metrics.jsonl in the run folder and passes them to the chosen tracker.

A resumed run repeats its finished steps from disk and logs them again; a line that exists already
is neither written nor passed on. Values that depend on the clock are ignored in that comparison.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trace_bench.core.errors import attempt
from trace_bench.core.protocols import Tracker
from trace_bench.core.store import Lines, canonical
from trace_bench.core.text import described

CLOCK_WORDS = ("wall", "second", "seconds", "_s", "time")
"""A metric whose name ends in one of these depends on the machine's speed."""


MOST_SAID = 300
"""Characters of a tracker's error that are kept."""


class Silent(Tracker):
    """`tracker=jsonl`: metrics as lines of metrics.jsonl in the run folder; nothing leaves the
    machine."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Nothing."""


class Metrics(Tracker):
    """metrics.jsonl, one line per call of `log`; new lines also go to `tracker`. A failure of the
    tracker does not stop the run: it is logged once and kept in `failure`, and the tracker is not
    called again."""

    def __init__(self, path: Path, tracker: Tracker, log: Callable[[str], None]) -> None:
        self._lines = Lines(path, dict)
        self._there = Counter(_key(line) for line in self._lines)
        self._tracker: Tracker | None = tracker
        self._log = log
        self.failure: str | None = None

    def log(self, values: Mapping[str, Any]) -> None:
        key = _key(values)
        if self._there[key] > 0:
            self._there[key] -= 1
            return
        self._lines.append(dict(values))
        self._forward(lambda tracker: tracker.log(values))

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """The run is finished."""
        self._forward(lambda tracker: tracker.conclude(summary))

    def close(self) -> None:
        self._lines.close()
        self._forward(lambda tracker: tracker.close())
        self._tracker = None

    def _forward(self, action: Callable[[Tracker], None]) -> None:
        if (tracker := self._tracker) is None:
            return
        error = attempt(lambda: action(tracker))
        if isinstance(error, BaseException):
            why = " ".join(described(error).split())[:MOST_SAID]
            self.failure = f"{type(tracker).__name__}, {why}"
            self._tracker = None
            self._log(
                f"the tracker failed ({self.failure}); the run goes on, and its metrics are in "
                "metrics.jsonl"
            )


def _key(values: Mapping[str, Any]) -> str:
    """The key by which two lines count as equal."""
    return canonical({k: _finite(v) for k, v in values.items() if not k.endswith(CLOCK_WORDS)})


def _finite(value: Any) -> Any:
    """The value, with NaN and infinities as strings: the writer refuses them by their key."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
