"""Progress output: phase, rollouts spent of the budget, reward, time left; and the time of phases.

A line is printed from time to time, to stderr: stdout carries only the results."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.store import read_if_there, write_json

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

    def phase(self, name: str, total: int = 0) -> None:
        """Starts a phase; `total`: its number of episodes, 0 if it spends the budget."""
        self._begin(name, total)
        self._show(force=True)

    def _begin(self, name: str, total: int) -> None:
        self._phase, self._total, self._step = name, total, ""
        self._start = self._last = self.clock()
        self._first = self._done = 0 if total else self.spent
        self._rewards.clear()

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """Sets the current step of the phase; with a `total`, so much of it is `done`."""
        self._step = f"{name}, {done}/{total} steps" if total else name
        self._show()

    def episode(self, reward: float | None, *, charged: bool) -> None:
        """Counts a finished episode; `reward` is None if the infrastructure failed."""
        self.spent += charged
        self._done += bool(self._total or charged)
        if reward is not None:
            self._rewards.append(reward)
        self._show()

    def log(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def line(self) -> str:
        """The current state as one line."""
        parts = [f"{self._phase}: {self._step}" if self._step else self._phase]
        if self._total:
            parts.append(f"{self._done}/{self._total} episodes")
        parts.append(f"rollouts {self.spent}/{self.budget}")
        if self._rewards:
            parts.append(f"reward {sum(self._rewards) / len(self._rewards):.2f}")
        done, left = self._done - self._first, (self._total or self.budget) - self._done
        if done >= ENOUGH and left > 0:
            seconds = round((self.clock() - self._start) / done * left)
            parts.append(f"{timedelta(seconds=seconds)} left")
        return " | ".join(parts)

    def _show(self, force: bool = False) -> None:
        now = self.clock()
        if force or now - self._last >= self.every:
            self._last = now
            self.log(self.line())


TIMING = "timing.json"


@dataclass
class Clock:
    """Wall seconds by phase over all attempts at a run; kept in the run folder."""

    path: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = read_if_there(self.path)
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
