"""Progress output: phase, rollouts spent of the budget, reward, time left.

On a terminal, two lines at the bottom are updated, of the phase and of the whole run; elsewhere a
line is printed from time to time. All goes to stderr: stdout carries only the results."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    what the budget does not pay for. `method`: a method acts, so that its pace is another than an
    evaluation's."""

    name: str
    phases: tuple[Phase, ...]
    episodes: int
    method: bool = False


def stages_of(
    settings: Settings, plan: MethodPlan, held_out: int, dev: int, points: int
) -> tuple[Stage, ...]:
    """The stages of a run in their order; the floors, which cost next to nothing, are left out."""
    evaluation, budget = settings.evaluation, settings.budget
    each, curve = held_out * evaluation.trials, points * dev
    rollouts = sum(phase.rollouts for phase in plan.phases)
    rollouts = min(rollouts, budget) if settings.accounting == "strict" else rollouts
    phases = (*plan.phases, *([Phase("points of the curve", curve)] if points else ()))

    def stage(name: str, count: int, title: str, *, most: bool = True, **kind: bool) -> Stage:
        return Stage(name, (Phase(title, count, most),), count, **kind)

    out = [stage(BASE, each, BASE, most=False)]
    out.append(Stage(METHOD, phases, rollouts + curve, method=True))
    if plan.learns or plan.adapters:
        out.append(stage("final evaluation", each, "final evaluation", most=False))
    if plan.adapters > 1 and evaluation.routing:
        alone, routing = plan.adapters * each, (plan.adapters + 2) * dev
        out.append(stage("evaluation of every adapter", alone, "every adapter alone"))
        out.append(stage("evaluation of routing", routing, "routing on the dev split"))
    for one in plan.yardsticks if evaluation.yardsticks else ():
        title, count = f"{one.title}, a yardstick", budget + each
        out.append(stage(one.title, count, title, method=True))
    return tuple(out)


class Ahead:
    """The stage that goes on, what is left of it, and those after it."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages, self._at = stages, -1
        self.begin("", {}, 0.0)

    def begin(self, name: str, seconds: Mapping[str, float], now: float) -> None:
        """The stage `name` begins at the time `now`; `seconds`: what stages took so far. Its
        `episodes` are counted from here."""
        names = [stage.name for stage in self._stages]
        self._at = names.index(name) if name in names else self._at
        self.now, self._started, self._seconds = name, now, dict(seconds)
        self.episodes = 0

    def later(self) -> list[Stage]:
        return [stage for stage in self._stages[self._at + 1 :] if stage.episodes]

    def left(self, now: float, phase: float | None = None) -> float | None:
        """Seconds, None without a pace so far; never less than what is known of the `phase`.
        Optimizer steps are in it once a method has a pace."""
        if not self._stages or self._pace(self._stages[0], now) is None:
            return None
        rest = sum(s.episodes * (self._pace(s, now) or 0.0) for s in self.later())
        here = self._stages[max(self._at, 0)]
        due = here.episodes - self.episodes if here.name == self.now else 0
        return rest + max(due * (self._pace(here, now) or 0.0), phase or 0.0)

    def _pace(self, stage: Stage, now: float) -> float | None:
        """Seconds an episode: of what goes on if it is of the same kind, else of the first stage of
        that kind. A method's is an evaluation's until there is one."""
        here = self._stages[max(self._at, 0)]
        if (here.name, here.method) == (self.now, stage.method) and self.episodes >= ENOUGH:
            return (now - self._started) / self.episodes
        for one in self._stages:
            measured = one.name != self.now and one.name in self._seconds
            if one.method == stage.method and measured and one.episodes:
                return self._seconds[one.name] / one.episodes
        return self._pace(self._stages[0], now) if stage.method else None


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
        self._ahead = Ahead(self.stages)
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

    def stage(self, name: str, seconds: Mapping[str, float]) -> None:
        """Starts a stage of the run, after those that took so many seconds."""
        self._ahead.begin(name, seconds, self.clock())
        self._tell()

    def _tell(self) -> None:
        """Says once what is to come, as soon as it is known how long that takes."""
        left, later = self._ahead.left(self.clock()), self._ahead.later()
        if self._told or left is None or not later:
            return
        self._told = True
        names = ", ".join(f"{s.name} (at most {s.episodes} episodes)" for s in later)
        self.log(f"still to come after the {self._ahead.now}: {names}; {_how_long(left)}")

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """Sets the current step of the phase; the time left is still that of the whole phase, or
        with a `total` that of this step, of which so much is `done`."""
        if name != self._step or total != self._steps.total:
            self._steps = _Count(self.clock(), total, done, enough=2)
        self._step, self._steps.done = name, done
        self._show()

    def episode(self, reward: float | None, *, charged: bool) -> None:
        """Counts a finished episode; `reward` is None if the infrastructure failed."""
        self._ahead.episodes += 1
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

    def line(self, columns: int = 1000) -> str:
        """The current state as one line; in few `columns` the names are shortened."""
        parts = []
        if self._steps.total:
            parts.append(f"{self._steps.done}/{self._steps.total} steps")
        elif self._total:
            parts.append(f"{self._episodes.done}/{self._total} episodes")
        parts.append(f"rollouts {self.spent}/{self.budget}")
        if self._rewards:
            parts.append(f"reward {sum(self._rewards) / len(self._rewards):.2f}")
        if (left := self._counted.left(self.clock())) is not None:
            parts.append(f"{duration(left)} left")
        name = f"{self._phase}: {self._step}" if self._step else self._phase
        return _fitting(name, " | ".join(parts), columns)

    def whole(self, columns: int = 1000) -> str:
        """The run after this phase as one line; in few `columns` the names are shortened."""
        now = self.clock()
        left = self._ahead.left(now, self._counted.left(now))
        then = ", ".join(stage.name for stage in self._ahead.later())
        figures = "the time left is not known yet"
        if left is not None:
            figures = f"in all {_how_long(left)}"
        return _fitting(f"then {then}" if then else "then the result", figures, columns)

    @property
    def _counted(self) -> _Count:
        """The steps if they are counted, else the phase."""
        return self._steps if self._steps.total else self._episodes

    def _show(self, force: bool = False) -> None:
        if self._live is not None:
            from rich.text import Text

            columns = self._live.console.width
            gauge = bar(self._counted.share)
            lines = [f"{gauge} {self.line(columns - len(gauge) - 1)}", self.whole(columns)]
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))
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

    @property
    def share(self) -> float:
        """Of what was due at the start."""
        due = self.total - self.first
        return (self.done - self.first) / due if due > 0 else 0.0

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


def until(seconds: float) -> str:
    """The time of day in so many seconds, with the weekday from 12 hours on."""
    form = "%H:%M" if seconds < 12 * 3600 else "%A %H:%M"
    return time.strftime(form, time.localtime(time.time() + seconds))


def _how_long(left: float) -> str:
    return f"about {duration(left)} left, until about {until(left)}"


def bar(share: float) -> str:
    full = round(min(max(share, 0.0), 1.0) * 8)
    return "\u2588" * full + "\u2591" * (8 - full)


def _fitting(name: str, figures: str, columns: int) -> str:
    """Both in one line of so many columns; the name is what is shortened."""
    most = max(columns - len(f" | {figures}"), 12)
    name = name if len(name) <= most else f"{name[: most - 1]}\u2026"
    return f"{name} | {figures}"


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
    every phase that begins, and of the seconds so far."""

    path: Path
    begun: Callable[[str, Mapping[str, float]], None] = lambda name, seconds: None
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.seconds = read_object(self.path)
            if not all(isinstance(s, int | float) for s in self.seconds.values()):
                raise UserError(f"{self.path} holds no seconds. {REPAIRS[TIMING]}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.begun(name, self.seconds)
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - started)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        write_json(self.path, self.seconds)
