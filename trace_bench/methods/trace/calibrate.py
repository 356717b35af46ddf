"""Calibration of synthetic environments on the base agent, within the budget (the map's step 4).

Only tasks that need the capability are measured: contrast cases are easy by design and would count
as "always succeeds". No trainer uses these rollouts as its first iteration, on purpose: it would no
longer be the trainer that the other methods use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trace_bench.core.protocols import Lab
from trace_bench.core.types import AgentSpec, Purpose, Task, Trajectory
from trace_bench.methods.making import MAX_LEVEL, Mix, draw
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.trainers.job import in_groups, paid

LOW, HIGH = 0.20, 0.60  # mean reward and success rate that are wanted (published)
STD = 0.05  # least standard deviation of the reward (published)
ALL_SUCCESS = ALL_ZERO = 0.20  # most groups that always succeed, or never earn anything (published)
CONSTANT = 0.50  # most groups with one and the same reward (published; so informative >= 0.5)
MOST_LOST = 0.1  # share of episodes that may be lost to errors before a calibration is useless
EPS = 1e-9


@dataclass(frozen=True)
class Numbers:
    """What one round measured. Shares are of groups, rates of rollouts."""

    groups: int
    rollouts: int
    mean_reward: float
    success: float
    std: float
    all_success: float
    all_zero: float
    constant: float
    informative: float
    failures: int  # episodes that the infrastructure lost; not in any other number

    def outside(self) -> tuple[str, ...]:
        """The bands that are missed, each as "name value (wanted ...)"; () when all are met."""
        episodes = self.rollouts + self.failures
        if self.failures > MOST_LOST * episodes:  # the other numbers mean little then
            return (f"{self.failures} of {episodes} episodes were lost to errors",)
        checks = (
            ("mean reward", self.mean_reward, LOW, HIGH),
            ("success", self.success, LOW, HIGH),
            ("std", self.std, STD, math.inf),
            ("all-success groups", self.all_success, 0.0, ALL_SUCCESS),
            ("all-zero groups", self.all_zero, 0.0, ALL_ZERO),
            ("constant groups", self.constant, 0.0, CONSTANT),
        )
        return tuple(
            f"{name} {value:.2f} (wanted {low:g} to {high:g})"
            for name, value, low, high in checks
            if not low - EPS <= value <= high + EPS
        )


def measure(groups: Sequence[Sequence[Trajectory]], reward: str) -> Numbers:
    """Numbers of groups of episodes; groups that were lost whole are left out."""
    scored = [
        [(paid(t, reward), t.score.success) for t in g if t.score is not None and t.failure is None]
        for g in groups
    ]
    full = [g for g in scored if g]
    rewards = [r for g in full for r, _ in g]
    mean = _mean(rewards)
    constant = _mean([max(g)[0] - min(g)[0] <= EPS for g in full])
    return Numbers(
        groups=len(full),
        rollouts=len(rewards),
        mean_reward=mean,
        success=_mean([s for g in full for _, s in g]),
        std=math.sqrt(_mean([(r - mean) ** 2 for r in rewards])),
        all_success=_mean([all(s for _, s in g) for g in full]),
        all_zero=_mean([all(r <= EPS for r, _ in g) for g in full]),
        constant=constant,
        informative=1.0 - constant if full else 0.0,
        failures=sum(map(len, groups)) - len(rewards),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True)
class Round:
    mix: Mix
    numbers: Numbers
    outside: tuple[str, ...] = ()


@dataclass
class Calibration:
    """One capability's rounds. `bands`: whether their numbers have to lie in the bands."""

    name: str
    rounds: list[Round] = field(default_factory=list)
    bands: bool = True

    @property
    def settled(self) -> bool:
        return bool(self.rounds) and not self.rounds[-1].outside

    @property
    def best(self) -> Round | None:
        """The round to train on: the one with the fewest missed bands."""
        return min(self.rounds, key=lambda r: len(r.outside), default=None)

    @property
    def mix(self) -> Mix:
        """Of the training tasks."""
        return self.best.mix if self.best else Mix()

    @property
    def outcome(self) -> str:
        if self.best is None:
            return "not measured"
        if not self.best.outside:
            return "in bands" if self.bands else "measured only"
        if all(r.numbers.groups and r.numbers.all_success >= 1.0 for r in self.rounds):
            return "dropped"  # the base agent always succeeds: nothing to learn
        return "kept with a warning"

    def next_mix(self) -> Mix:
        """Longer tasks after a round that was too easy, shorter ones after one too hard."""
        if not self.rounds:
            return Mix()
        mix, numbers = self.rounds[-1].mix, self.rounds[-1].numbers
        easy = numbers.success > HIGH or numbers.all_success > ALL_SUCCESS
        hard = numbers.success < LOW or numbers.all_zero > ALL_ZERO
        step = -1 if hard and numbers.success < (LOW + HIGH) / 2 else int(easy)
        return replace(mix, level=max(-MAX_LEVEL, min(MAX_LEVEL, mix.level + step)))

    def as_json(self) -> dict[str, object]:
        rounds = [
            {"mix": vars(r.mix), **vars(r.numbers), "outside": list(r.outside)} for r in self.rounds
        ]
        return {
            "name": self.name, "outcome": self.outcome, "mix": vars(self.mix), "rounds": rounds
        }  # fmt: skip

    def in_words(self) -> str:
        """The rounds in a line, and the bands that the last one missed."""
        rounds = [
            f"level {r.mix.level}: reward {r.numbers.mean_reward:.2f}, success "
            f"{r.numbers.success:.2f}, informative groups {r.numbers.informative:.2f}"
            for r in self.rounds
        ]
        missed = [f": {'; '.join(r.outside)}" for r in self.rounds[-1:] if r.outside]
        return f"{', '.join([self.name, *rounds])}; {self.outcome}{''.join(missed)}"


def calibrate(
    lab: Lab, base: AgentSpec, names: Sequence[str], settings: TraceSettings, pool: int
) -> list[Calibration]:
    """Calibrates every capability in `names` with at most `pool` rollouts; one result each, in
    order. All capabilities of a round share one call, so that they run in one batch."""
    results = [Calibration(name, bands=settings.bands) for name in names]
    for number in range(settings.calibration_rounds):
        due = [c for c in results if not c.settled][: pool // settings.calibration_round]
        if not due:
            break
        pool -= len(due) * settings.calibration_round
        mixes = [calibration.next_mix() for calibration in due]
        call, tasks = f"calibration/{number}", list[Task]()
        for calibration, mix in zip(due, mixes, strict=True):
            count, setting = settings.calibration_groups, "method.calibration_groups"
            wanted = replace(mix, contrast=0.0)
            name, share = calibration.name, settings.in_context
            tasks += draw(lab.suite, name, count, wanted, lab.seed, call, setting, share)
        measured = play(lab, base, call, tasks, settings)
        for calibration, mix, numbers in zip(due, mixes, measured, strict=True):
            outside = numbers.outside() if settings.bands else ()
            calibration.rounds.append(Round(mix, numbers, outside))
    return results


def play(
    lab: Lab, base: AgentSpec, call: str, tasks: Sequence[Task], settings: TraceSettings
) -> list[Numbers]:
    """A group of rollouts of each task; the numbers of every `calibration_groups` of them."""
    size = settings.calibration_group_size
    each, heat = [task for task in tasks for _ in range(size)], settings.analysis_temperature
    played = lab.rollouts(call, base, each, purpose=Purpose.CALIBRATION, temperature=heat)
    rounds = in_groups(in_groups(played, size), settings.calibration_groups)
    return [measure(groups, settings.adapter_reward) for groups in rounds]
