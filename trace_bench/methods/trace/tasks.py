"""Step 4: training tasks for the chosen capabilities: from the suite's generator, calibrated on the
base agent; from environments that a language model writes; or the target's training tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import MethodPlan, Phase, PlannedRun
from trace_bench.core.types import Task
from trace_bench.methods.looking.analysis import refuse_analyst
from trace_bench.methods.looking.capabilities import Verdict
from trace_bench.methods.making import GENERATOR, Mix, draw, generator
from trace_bench.methods.trace import calibrate
from trace_bench.methods.trace.fit import Fit, Made
from trace_bench.methods.trace.generate import questions
from trace_bench.methods.trace.generate.checks import held_out
from trace_bench.methods.trace.generate.generation import Generation
from trace_bench.methods.trace.settings import Budget, TraceSettings

SELECTED = "environments selected from training tasks"


def way_of(settings: TraceSettings, written: bool) -> type[Fit]:
    """`written`: a model plays the role of the generator."""
    if settings.synthesis == "select":
        return Selected
    return Written if written else Generated


class Generated(Fit):
    nothing = "the base agent already has what was selected: it is returned"

    @classmethod
    def planned(cls, run: PlannedRun, budget: Budget, left: int) -> MethodPlan:
        ways = "llm.generator.by=endpoint too, llm.analyst.by=program, or method.synthesis=select"
        refuse_analyst(run, f"Set {ways}.")
        return MethodPlan(phases=_calibration(budget, left), needs=(GENERATOR,))

    def can_make(self) -> Collection[str]:
        return tuple(generator(self.lab.suite).capabilities())

    def make(self, chosen: Sequence[Verdict]) -> Made:
        """Of every capability that is worth training, as calibrated."""
        settings, lab = self.settings, self.lab
        names = [v.name for v in chosen]
        pool = self.budget.calibration(self.budget.left(lab), len(names))
        results = calibrate.calibrate(lab, self.base, names, settings, pool)
        self.write(calibration=[calibrate.as_json(c) for c in results])
        lab.log(calibrate.table(results))
        return {c.name: self.draw(c.name, c.mix) for c in results if c.outcome != "dropped"}

    def draw(self, name: str, mix: Mix) -> tuple[Task, ...]:
        """As `making.draw`, once for a method and its yardstick, which asks for the same."""
        suite = self.lab.suite
        asked = (name, self.settings.synthetic_tasks, mix, self.lab.seed)
        if (id(suite), asked) not in self.drawn:  # the suite stays there, and so its id is its own
            self.drawn[id(suite), asked] = suite, draw(suite, *asked, "train")
        return self.drawn[id(suite), asked][1]


class Written(Fit):
    """By a language model, for the capabilities where it could."""

    nothing = "no environment was accepted: the base agent is returned"
    generation: Generation

    @classmethod
    def planned(cls, run: PlannedRun, budget: Budget, left: int) -> MethodPlan:
        settings = budget.settings
        if not settings.calibration_rounds:
            raise UserError(
                "method.calibration_rounds=0, but an environment that a model wrote "
                "(llm.generator) is accepted by what its calibration measures. Raise "
                "`method.calibration_rounds` to 1 or more."
            )
        attempts = budget.capabilities(left) * settings.generator_rounds
        roles = (questions.GENERATOR, questions.JUDGE)
        asked = {role: attempts for role in roles if role in run.models}
        return MethodPlan(phases=_calibration(budget, left), questions=asked)

    def make(self, chosen: Sequence[Verdict]) -> Made:
        lab, settings = self.lab, self.settings
        pool = self.budget.calibration(self.budget.left(lab), len(chosen))
        tools, leaks = self.analysis.tools(), held_out(lab.suite, self.tasks)
        self.generation = Generation(lab, self.base, settings, tools, leaks, pool)
        self.write(generator={"prompt": questions.VERSION})
        made: dict[str, tuple[Task, ...]] = {}
        for n, v in enumerate(chosen, start=1):
            examples = [e.trajectory for e in self.analysis.lacking(v.name)]
            tasks = self.generation.make(v.capability, examples, len(chosen) - n)
            if tasks is not None:
                made[v.name] = tasks
        self._write_dropped()
        return made

    def listening(self) -> AbstractContextManager[None]:
        return self.lab.listening(self.generation.hear)

    def keeps(self, tasks: Sequence[Task]) -> bool:
        if self.generation.fault(tasks) is None:
            return True
        self._write_dropped()
        return False

    def _write_dropped(self) -> None:
        listed = self.generation.dropped.items()
        self.write(dropped=[{"name": name, "reason": why} for name, why in listed])


class Selected(Fit):
    """The training tasks whose failures lack a capability, for suites that can make no tasks of
    their own. No calibration is run: the analysis has run these very tasks with the base agent, and
    its numbers are written down. None is dropped for them: each task has failed at least once."""

    looks = "analysis, which calibrates too"
    nothing = "no failure lacks what is selected: the base agent is returned"

    @classmethod
    def planned(cls, run: PlannedRun, budget: Budget, left: int) -> MethodPlan:
        return MethodPlan(marks=(SELECTED,))

    def make(self, chosen: Sequence[Verdict]) -> Made:
        """In the order of the analysis; a task may belong to several capabilities. One that no
        failure lacks by the majority of the labelling runs is left out."""
        made: dict[str, tuple[Task, ...]] = {}
        for v in chosen:
            lacking = {e.task.id: e.task for e in self.analysis.lacking(v.name)}
            if lacking:
                made[v.name] = tuple(lacking.values())
        self.write(calibration=[self._measured(name, tasks) for name, tasks in made.items()])
        for name, tasks in made.items():
            self.lab.log(f"{name}: {len(tasks)} training tasks whose failures lack it")
        return made

    def _measured(self, name: str, tasks: Sequence[Task]) -> dict[str, Any]:
        listed = [task.id for task in tasks]
        episodes = self.analysis.episodes
        groups = [[e.trajectory for e in episodes if e.task.id == i] for i in listed]
        numbers = calibrate.of_groups(groups, self.settings)
        return {"name": name, "outcome": SELECTED, "tasks": listed, **vars(numbers)}


def _calibration(budget: Budget, left: int) -> tuple[Phase, ...]:
    if not budget.settings.calibration_round:
        return ()
    most = budget.capabilities(left)
    pool = budget.calibration(left, most)
    return (Phase(f"calibration (up to {most} environments)", pool, most=True),)
