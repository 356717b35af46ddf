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
from trace_bench.methods.trace.settings import SynthesisSettings
from trace_bench.trainers.episodes import in_groups

EPS = 1e-9
MOST_LOST = 0.1  # share of episodes that may be lost to errors before a calibration is useless


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


@dataclass(frozen=True)
class Round:
    mix: Mix
    numbers: Numbers
    outside: tuple[str, ...]  # the bands that are missed, in words


@dataclass
class Calibration:
    """One capability's rounds. `outcome` is "in bands", "kept with a warning", "dropped" or,
    where no round is asked for, "not measured"."""

    name: str
    mix: Mix
    rounds: list[Round] = field(default_factory=list)
    outcome: str = ""

    @property
    def settled(self) -> bool:
        return bool(self.rounds) and not self.rounds[-1].outside


def measure(groups: Sequence[Sequence[tuple[float, bool]]], failures: int = 0) -> Numbers:
    """Numbers of groups of (reward, success) pairs; empty groups are left out."""
    full = [g for g in groups if g]
    rewards = [r for g in full for r, _ in g]
    reward = _mean(rewards)
    constant = _mean([max(g)[0] - min(g)[0] <= EPS for g in full])
    return Numbers(
        groups=len(full),
        rollouts=len(rewards),
        mean_reward=reward,
        success=_mean([s for g in full for _, s in g]),
        std=math.sqrt(_mean([(r - reward) ** 2 for r in rewards])),
        all_success=_mean([all(s for _, s in g) for g in full]),
        all_zero=_mean([all(r <= EPS for r, _ in g) for g in full]),
        constant=constant,
        informative=1.0 - constant if full else 0.0,
        failures=failures,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def outside_bands(numbers: Numbers, settings: SynthesisSettings) -> tuple[str, ...]:
    """The bands that `numbers` miss, each as "name value (wanted ...)"; () when all are met."""
    low, high = settings.band_low, settings.band_high
    checks = (
        ("mean reward", numbers.mean_reward, low, high),
        ("success", numbers.success, low, high),
        ("std", numbers.std, settings.band_std, math.inf),
        ("all-success groups", numbers.all_success, 0.0, settings.band_all_success),
        ("all-zero groups", numbers.all_zero, 0.0, settings.band_all_zero),
        ("constant groups", numbers.constant, 0.0, settings.band_constant),
    )
    episodes = numbers.rollouts + numbers.failures
    if numbers.failures > MOST_LOST * episodes:  # the other numbers mean little then
        return (f"{numbers.failures} of {episodes} episodes were lost to errors",)
    return tuple(
        f"{name} {value:.2f} (wanted {lo:g} to {hi:g})"
        for name, value, lo, hi in checks
        if not lo - EPS <= value <= hi + EPS
    )


def next_mix(mix: Mix, numbers: Numbers, settings: SynthesisSettings) -> Mix:
    """Longer tasks after a round that was too easy, shorter ones after one that was too hard."""
    middle = (settings.band_low + settings.band_high) / 2
    easy = numbers.success > settings.band_high or numbers.all_success > settings.band_all_success
    hard = numbers.success < settings.band_low or numbers.all_zero > settings.band_all_zero
    step = -1 if hard and numbers.success < middle else int(easy)
    return replace(mix, level=max(-MAX_LEVEL, min(MAX_LEVEL, mix.level + step)))


def calibrate(
    lab: Lab, base: AgentSpec, names: Sequence[str], settings: SynthesisSettings, pool: int
) -> list[Calibration]:
    """Calibrates every capability in `names` with at most `pool` rollouts; one result each, in
    order. All capabilities of a round share one call, so that they run in one batch."""
    results = [Calibration(name, Mix()) for name in names]
    for number in range(settings.calibration_rounds):
        due = [c for c in results if not c.settled][: pool // settings.calibration_round]
        if not due:
            break
        pool -= len(due) * settings.calibration_round
        measured = _play_round(lab, base, due, settings, number)
        for calibration, numbers in zip(due, measured, strict=True):
            outside = outside_bands(numbers, settings)
            calibration.rounds.append(Round(calibration.mix, numbers, outside))
            calibration.mix = next_mix(calibration.mix, numbers, settings)
    for calibration in results:
        if settings.calibration_rounds:
            _conclude(calibration)
        else:
            calibration.outcome = "not measured"
    return results


def _play_round(
    lab: Lab, base: AgentSpec, due: Sequence[Calibration], settings: SynthesisSettings, number: int
) -> list[Numbers]:
    size, label = settings.calibration_group_size, f"calibration/{number}"
    tasks: list[Task] = []
    for c in due:
        mix = replace(c.mix, contrast=0.0)
        count, setting = settings.calibration_groups, "method.calibration_groups"
        drawn = draw(lab.suite, c.name, count, mix, lab.seed, label, setting=setting)
        tasks.extend(task for task in drawn for _ in range(size))
    temperature = settings.calibration_temperature
    played = lab.rollouts(label, base, tasks, purpose=Purpose.CALIBRATION, temperature=temperature)
    return [numbers(own, settings) for own in in_groups(played, settings.calibration_round)]


def numbers(played: Sequence[Trajectory], settings: SynthesisSettings) -> Numbers:
    """Numbers of one capability's episodes, in groups of `calibration_group_size`."""
    return of_groups(in_groups(played, settings.calibration_group_size), settings)


def of_groups(groups: Sequence[Sequence[Trajectory]], settings: SynthesisSettings) -> Numbers:
    scored = []
    for group in groups:
        scores = [t.score for t in group if t.score is not None and t.failure is None]
        scored.append([(float(getattr(s, settings.adapter_reward)), s.success) for s in scores])
    return measure(scored, failures=sum(map(len, groups)) - sum(map(len, scored)))


def _conclude(calibration: Calibration) -> None:
    """Sets outcome and mix: the round with the fewest missed bands is the one to train on."""
    calibration.outcome = "kept with a warning"
    if not calibration.rounds:
        return
    best = min(calibration.rounds, key=lambda r: len(r.outside))
    calibration.mix = best.mix
    if not best.outside:
        calibration.outcome = "in bands"
    elif all(r.numbers.groups and r.numbers.all_success >= 1.0 for r in calibration.rounds):
        calibration.outcome = "dropped"  # the base agent always succeeds: nothing to learn


def as_json(calibration: Calibration) -> dict[str, object]:
    return {
        "name": calibration.name,
        "outcome": calibration.outcome,
        "mix": vars(calibration.mix),
        "rounds": [
            {"mix": vars(r.mix), **vars(r.numbers), "outside": list(r.outside)}
            for r in calibration.rounds
        ],
    }


def in_words(calibration: Calibration) -> str:
    """The rounds in a line, and the bands that the last one missed."""
    rounds = [
        f"level {r.mix.level}: reward {r.numbers.mean_reward:.2f}, success "
        f"{r.numbers.success:.2f}, informative groups {r.numbers.informative:.2f}"
        for r in calibration.rounds
    ] or ["no rollouts left for it"]
    missed = "; ".join(calibration.rounds[-1].outside) if calibration.rounds else ""
    outcome = f"{calibration.outcome}: {missed}" if missed else calibration.outcome
    return f"{calibration.name}, {', '.join(rounds)}; {outcome}"
