"""Progress output: phase, rollouts spent of the budget, reward, time left.

On a terminal the last line is updated; elsewhere a line is printed from time to time. All goes to
stderr: stdout carries only the results."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import MethodPlan, Phase
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.store import read_object, write_json
from trace_bench.settings.schema import Settings

BASE, METHOD = "base evaluation", "method"
RECENT = 64  # episodes in the running reward
ENOUGH = 8  # episodes that have a pace


@dataclass(frozen=True)
class Stage:
    """What `Clock` measures as `name`, with its phases in a dry run. `episodes`: at most, without
    what the budget does not pay for."""

    name: str
    phases: tuple[Phase, ...]
    episodes: int


def stages_of(
    settings: Settings, plan: MethodPlan, held_out: int, dev: int, points: int
) -> tuple[Stage, ...]:
    """The stages of a run in their order; the floors, which cost next to nothing, are left out."""
    evaluation, budget = settings.evaluation, settings.budget
    each, curve = held_out * evaluation.trials, points * dev
    rollouts = sum(phase.rollouts for phase in plan.phases)
    rollouts = min(rollouts, budget) if settings.accounting == "strict" else rollouts
    phases = (*plan.phases, *([Phase("points of the curve", curve)] if points else ()))

    def stage(name: str, count: int, title: str, most: bool = True) -> Stage:
        return Stage(name, (Phase(title, count, most),), count)

    out = [stage(BASE, each, BASE, most=False)]
    out.append(Stage(METHOD, phases, rollouts + curve))
    if plan.learns or plan.adapters:
        out.append(stage("final evaluation", each, "final evaluation", most=False))
    if plan.adapters > 1 and evaluation.routing:
        count = plan.adapters * each
        out.append(stage("evaluation of every adapter", count, "every adapter alone"))
    for one in plan.yardsticks if evaluation.yardsticks else ():
        title, count = f"{one.title}, a yardstick", budget + each
        out.append(stage(one.title, count, title))
    return tuple(out)


@dataclass(eq=False)
class Progress:
    """Counts episodes and shows the progress. Never influences results."""

    budget: int
    _: KW_ONLY
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    every: float = 10.0
    stages: Sequence[Stage] = ()

    def __post_init__(self) -> None:
        self._run = _Run(self.stages, self.clock())
        self._told = False
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

    def stage(self, name: str) -> None:
        """Starts a stage of the run."""
        self._run.begin(name, self.clock())
        self._tell()

    def _tell(self) -> None:
        """Says once what is to come, as soon as it is known how long that takes."""
        left, later = self._run.left(self.clock()), self._run.later()
        if self._told or left is None or not later:
            return
        self._told = True
        names = ", ".join(f"{s.name} (at most {s.episodes} episodes)" for s in later)
        self.log(f"still to come: {names}; {_how_long(left)}")

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """Sets the current step of the phase; the time left is still that of the whole phase, or
        with a `total` that of this step, of which so much is `done`."""
        if name != self._step or total != self._steps.total:
            self._steps = _Count(self.clock(), total, done, enough=2)
        self._step, self._steps.done = name, done
        self._show()

    def episode(self, reward: float | None, *, charged: bool) -> None:
        """Counts a finished episode; `reward` is None if the infrastructure failed."""
        self._run.episodes += 1
        self.spent += charged
        if self._total or charged:
            self._episodes.done += 1
        if self._episodes.done * 4 >= self._total > 0:
            self._tell()
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
        counted, now = self._steps if self._steps.total else self._episodes, self.clock()
        if (left := counted.left(now)) is not None:
            parts.append(f"{duration(left)} left")
        if (whole := self._run.left(now)) is not None and self._run.later():
            parts.append(f"in all {_how_long(max(whole, left or 0.0))}")
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


@dataclass
class _Run:
    """The stage that goes on, at `at`, its `episodes` so far, and the pace of all stages. What is
    not among the stages has no time and no episodes."""

    stages: Sequence[Stage]
    started: float
    at: int = -1
    listed: bool = False
    episodes: int = 0
    earlier: tuple[int, float] = (0, 0.0)  # episodes and seconds of the stages before

    def begin(self, name: str, now: float) -> None:
        if self.listed:
            count, seconds = self.earlier
            self.earlier = count + self.episodes, seconds + now - self.started
        names = [stage.name for stage in self.stages]
        self.listed = name in names
        self.at = names.index(name) if self.listed else self.at
        self.started, self.episodes = now, 0

    def later(self) -> list[Stage]:
        return [stage for stage in self.stages[self.at + 1 :] if stage.episodes]

    def left(self, now: float) -> float | None:
        """Seconds of all that is left; None without a pace."""
        count, seconds = self.earlier
        due = sum(stage.episodes for stage in self.later())
        if self.listed:
            count, seconds = count + self.episodes, seconds + now - self.started
            due += max(0, self.stages[self.at].episodes - self.episodes)
        return None if count < ENOUGH else seconds / count * due


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


def until(seconds: float) -> str:
    """The time of day in so many seconds, with the weekday from 12 hours on."""
    form = "%H:%M" if seconds < 12 * 3600 else "%A %H:%M"
    return time.strftime(form, time.localtime(time.time() + seconds))


def _how_long(left: float) -> str:
    return f"about {duration(left)} left, until about {until(left)}"


def _live(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live("", console=Console(file=stream), refresh_per_second=4, transient=True)
    live.start()
    return live


TIMING = "timing.json"


@dataclass
class Clock:
    """Wall seconds by phase over all attempts at a run; kept in the run folder. `begun`: is told of
    every phase that begins."""

    path: Path
    begun: Callable[[str], None] = lambda name: None
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.seconds = read_object(self.path)
            if not all(isinstance(s, int | float) for s in self.seconds.values()):
                raise UserError(f"{self.path} holds no seconds. {REPAIRS[TIMING]}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.begun(name)
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        write_json(self.path, self.seconds)
