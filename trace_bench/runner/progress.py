"""Progress output: phase, rollouts spent of the budget, reward, time left.

On a terminal, one line at the bottom is updated; elsewhere a plain line is printed from time to
time. Everything goes to stderr, so that stdout carries only the results.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.store import read_object, write_json

RECENT = 64  # episodes in the running reward


class Progress:
    """Counts episodes and shows the progress. Never influences results."""

    def __init__(
        self,
        budget: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        every: float = 10.0,
    ) -> None:
        self.budget = budget
        self.spent = 0
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._every = every
        self._phase = "starting"
        self._step = ""
        self._total = 0
        self._done = 0
        self._rewards: deque[float] = deque(maxlen=RECENT)
        self._phase_start = self._last = clock()
        self._spent_at_start = 0
        self._live: Any = None
        if self._stream.isatty():
            self._live = _live(self._stream)

    def phase(self, name: str, total: int = 0) -> None:
        """Starts a phase; `total`: its number of episodes, 0 if it spends the budget."""
        self._phase, self._step, self._total, self._done = name, "", total, 0
        self._rewards.clear()
        self._phase_start = self._last = self._clock()
        self._spent_at_start = self.spent
        self._show(force=True)

    def step(self, name: str) -> None:
        """Sets the current step of the phase; the time left is still that of the whole phase."""
        self._step = name
        self._show()

    def episode(self, reward: float | None, *, charged: bool) -> None:
        """Counts a finished episode; `reward` is None if the infrastructure failed."""
        self._done += 1
        self.spent += charged
        if reward is not None:
            self._rewards.append(reward)
        self._show()

    def log(self, text: str) -> None:
        """Prints a permanent line (or table)."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)

    def aside(self) -> Aside:
        """Progress for a part of the run that is not charged to its budget."""
        return Aside(self)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def line(self, columns: int = 1000) -> str:
        """The current state as one line. In few `columns` the name of the phase and its step is
        what is shortened."""
        parts = []
        if self._total:
            parts.append(f"{self._done}/{self._total} episodes")
        parts.append(f"rollouts {self.spent}/{self.budget}")
        if self._rewards:
            parts.append(f"reward {sum(self._rewards) / len(self._rewards):.2f}")
        left = self._time_left()
        if left is not None:
            parts.append(f"{duration(left)} left")
        figures = " | ".join(parts)
        name = f"{self._phase}: {self._step}" if self._step else self._phase
        most = max(columns - len(f" | {figures}"), 12)
        name = name if len(name) <= most else f"{name[: most - 1]}\u2026"
        return f"{name} | {figures}"

    def _time_left(self) -> float | None:
        """Estimated seconds, from this phase's pace so far."""
        done = self._done if self._total else self.spent - self._spent_at_start
        left = self._total - self._done if self._total else self.budget - self.spent
        if done < 8 or left <= 0:
            return None
        return (self._clock() - self._phase_start) / done * left

    def _show(self, force: bool = False) -> None:
        if self._live is not None:
            from rich.text import Text

            columns = self._live.console.width
            self._live.update(Text(self.line(columns), no_wrap=True, overflow="ellipsis"))
            return
        now = self._clock()
        if force or now - self._last >= self._every:
            self._last = now
            print(self.line(), file=self._stream, flush=True)


class Aside:
    """The progress of a yardstick: its episodes are shown, but not counted as the run's rollouts,
    and its log is not shown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def step(self, name: str) -> None:
        self._progress.step(name)

    def episode(self, reward: float | None, *, charged: bool) -> None:
        self._progress.episode(reward, charged=False)

    def log(self, text: str) -> None:
        """Left out."""


def duration(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 10 min."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _live(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live("", console=Console(file=stream), refresh_per_second=4, transient=True)
    live.start()
    return live


TIMING = "timing.json"


@dataclass
class Clock:
    """Wall seconds by phase over all attempts at a run; kept in the run folder."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.seconds = read_object(self.path)
            if not all(isinstance(s, int | float) for s in self.seconds.values()):
                raise UserError(f"{self.path} holds no seconds. {REPAIRS[TIMING]}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        write_json(self.path, self.seconds)
