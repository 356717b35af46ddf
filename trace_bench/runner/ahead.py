"""What a run still has before it: its stages, and about how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trace_bench.core.protocols import MethodPlan, Phase
from trace_bench.settings.schema import Settings

BASE, METHOD = "base evaluation", "method"
ENOUGH = 8  # episodes that have a pace


@dataclass(frozen=True)
class Stage:
    """What `Clock` measures as `name`, with its phases in a dry run. `episodes`: at most, without
    what the budget does not pay for. `method`: a method acts, so that its pace is another than an
    evaluation's; `trains`: it also takes optimizer steps."""

    name: str
    phases: tuple[Phase, ...]
    episodes: int
    method: bool = False
    trains: bool = False


def stages_of(
    settings: Settings, plan: MethodPlan, held_out: int, dev: int, points: int
) -> tuple[Stage, ...]:
    """The stages of a run in their order; the floors, which cost next to nothing, are left out."""
    evaluation, budget = settings.evaluation, settings.budget
    each, curve = held_out * evaluation.trials, points * dev
    own = sum(phase.rollouts for phase in plan.phases)
    own = min(own, budget) if settings.accounting == "strict" else own
    phases = (*plan.phases, *([Phase("points of the curve", curve)] if points else ()))

    def stage(name: str, count: int, title: str, *, most: bool = True, **kind: bool) -> Stage:
        return Stage(name, (Phase(title, count, most),), count, **kind)

    out = [stage(BASE, each, BASE, most=False)]
    out.append(Stage(METHOD, phases, own + curve, method=True, trains=plan.trains))
    if plan.learns or plan.adapters:
        out.append(stage("final evaluation", each, "final evaluation", most=False))
    if plan.adapters > 1 and evaluation.routing:
        alone, routing = plan.adapters * each, (plan.adapters + 2) * dev
        out.append(stage("evaluation of every adapter", alone, "every adapter alone"))
        out.append(stage("evaluation of routing", routing, "routing on the dev split"))
    for one in plan.yardsticks if evaluation.yardsticks else ():
        title, count = f"{one.title}, a yardstick", budget + each
        out.append(stage(one.title, count, title, method=True, trains=plan.trains))
    return tuple(out)


class Ahead:
    """The stage that goes on, what is left of it, and those after it."""

    def __init__(self, stages: Sequence[Stage] = ()) -> None:
        self._stages, self._at, self.now = stages, -1, ""
        self._started, self._done, self._steps = 0.0, 0, False
        self._seconds: Mapping[str, float] = {}

    def begin(self, name: str, seconds: Mapping[str, float], now: float) -> None:
        """The stage `name` begins at the time `now`; `seconds`: what stages took so far."""
        names = [stage.name for stage in self._stages]
        self._at = names.index(name) if name in names else self._at
        self.now, self._started, self._done, self._steps = name, now, 0, False
        self._seconds = dict(seconds)

    def episode(self) -> None:
        self._done += 1

    def step(self) -> None:
        self._steps = True

    def later(self) -> list[Stage]:
        return [s for s in self._stages[self._at + 1 :] if s.episodes or s.trains]

    @property
    def least(self) -> bool:
        """Whether `left` lacks the time of optimizer steps, of which none has shown its pace."""
        due, ended = self._stages[max(self._at, 0) :], self._seconds.keys() - {self.now}
        shown = any(s.trains and s.name in ended for s in self._stages)
        return any(s.trains for s in due) and not (shown or (self._steps and self._done >= ENOUGH))

    def left(self, now: float, phase: float | None = None) -> float | None:
        """Seconds, None without a pace so far; never less than what is known of the `phase`."""
        if not self._stages or self._pace(self._stages[0], now) is None:
            return None
        rest = sum(s.episodes * (self._pace(s, now) or 0.0) for s in self.later())
        here = self._stages[max(self._at, 0)]
        due = here.episodes - self._done if here.name == self.now else 0
        return rest + max(due * (self._pace(here, now) or 0.0), phase or 0.0)

    def _pace(self, stage: Stage, now: float) -> float | None:
        """Seconds an episode: of what goes on if it is of the same kind, else of the first stage of
        that kind. A method's is an evaluation's until there is one."""
        here = self._stages[max(self._at, 0)]
        if (here.name, here.method) == (self.now, stage.method) and self._done >= ENOUGH:
            return (now - self._started) / self._done
        for one in self._stages:
            measured = one.name != self.now and one.name in self._seconds
            if one.method == stage.method and measured and one.episodes:
                return self._seconds[one.name] / one.episodes
        return self._pace(self._stages[0], now) if stage.method else None
