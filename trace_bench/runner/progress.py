"""Progress output: phase, rollouts spent of the budget, reward, time left.

On a terminal the last line is updated; elsewhere a line is printed from time to time. All goes to
stderr: stdout carries only the results."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.store import read_object, write_json

RECENT = 64  # episodes in the running reward
ENOUGH = 8  # episodes that have a pace


@dataclass(eq=False)
class Progress:
    """Counts episodes and shows the progress. Never influences results."""

    budget: int
    _: KW_ONLY
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    every: float = 10.0

    def __post_init__(self) -> None:
        self.spent = 0
        self._rewards: deque[float] = deque(maxlen=RECENT)
        self._begin("starting", 0)
        self._live = _live(self.stream) if self.stream.isatty() else None

    def phase(self, name: str, total: int = 0) -> None:
        """Starts a phase; `total`: its number of episodes, 0 if it spends the budget."""
        self._begin(name, total)
        self._show(force=True)

    def _begin(self, name: str, total: int) -> None:
        self._phase, self._total, self._last = name, total, self.clock()
        first = 0 if total else self.spent
        self._episodes = _Count(self._last, total or self.budget, first, first)
        self._step, self._steps = "", _Count()
        self._rewards.clear()

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """Sets the current step of the phase; the time left is still that of the whole phase, or
        with a `total` that of this step, of which so much is `done`."""
        if name != self._step or total != self._steps.total:
            self._steps = _Count(self.clock(), total, done, enough=2)
        self._step, self._steps.done = name, done
        self._show()

    def episode(self, reward: float | None, *, charged: bool) -> None:
        """Counts a finished episode; `reward` is None if the infrastructure failed."""
        self.spent += charged
        if self._total or charged:
            self._episodes.done += 1
        if reward is not None:
            self._rewards.append(reward)
        self._show()

    def log(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def line(self) -> str:
        """The current state as one line."""
        name = f"{self._phase}: {self._step}" if self._step else self._phase
        parts = [name]
        if self._steps.total:
            parts.append(f"{self._steps.done}/{self._steps.total} steps")
        elif self._total:
            parts.append(f"{self._episodes.done}/{self._total} episodes")
        parts.append(f"rollouts {self.spent}/{self.budget}")
        if self._rewards:
            parts.append(f"reward {sum(self._rewards) / len(self._rewards):.2f}")
        counted = self._steps if self._steps.total else self._episodes
        if (left := counted.left(self.clock())) is not None:
            parts.append(f"{duration(left)} left")
        return " | ".join(parts)

    def _show(self, force: bool = False) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(self.line()))
            return
        now = self.clock()
        if force or now - self._last >= self.every:
            self._last = now
            print(self.line(), file=self.stream, flush=True)


@dataclass
class _Count:
    """`done` of a `total` (0: not counted), of which `first` were done at `start`; `enough`: how
    many have a pace."""

    start: float = 0.0
    total: int = 0
    first: int = 0
    done: int = 0
    enough: int = ENOUGH

    def left(self, now: float) -> float | None:
        """Estimated seconds, from the pace so far; None without one, or if all is done."""
        done = self.done - self.first
        if done < self.enough or self.done >= self.total:
            return None
        return (now - self.start) / done * (self.total - self.done)


class Aside:
    """The progress of a yardstick: its episodes are shown, but not counted; its log is not."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        self._progress.step(name, done, total)

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
