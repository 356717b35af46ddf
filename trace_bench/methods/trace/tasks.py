"""Make tasks of the chosen capabilities: by the suite's generator, calibrated on the base agent; in
environments that a language model writes; or the target's own training tasks. Which of these
functions makes them follows from what the suite offers (`source_of`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, MethodPlan, Phase, PlannedRun, Suite
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.looking import analyst
from trace_bench.methods.looking.analysis import CALL, Analysis
from trace_bench.methods.looking.capabilities import Verdict
from trace_bench.methods.making import GENERATOR, draw
from trace_bench.methods.trace import calibrate
from trace_bench.methods.trace.checks import held_out
from trace_bench.methods.trace.generation import ATTEMPTS, PROMPT_VERSION, ROLE, Generation
from trace_bench.methods.trace.settings import Budget, TraceSettings

SELECTED = "environments selected from training tasks"


@dataclass(frozen=True)
class Looked:
    """What is known when tasks are made."""

    base: AgentSpec
    tasks: Sequence[Task]
    lab: Lab
    budget: Budget
    analysis: Analysis

    def pool(self, capabilities: int) -> int:
        """Rollouts that calibration may use in all."""
        return self.budget.calibration(self.budget.left(self.lab), capabilities)


TrainingTasks = Mapping[str, tuple[Task, ...]]
"""Of each capability that there are tasks for, in training order."""


@dataclass(frozen=True)
class TaskSource:
    """A way to come by tasks. `make`: of the chosen capabilities; `trainable`: those that it has
    tasks for (None: all that are no controls); `planned`: its part of the plan, which raises
    UserError for settings and roles that do not fit together; `looks`: what the analysis is called
    there; `nothing`: why no adapter is trained when there are no tasks."""

    make: Callable[[Looked, Sequence[Verdict]], TrainingTasks]
    planned: Callable[[PlannedRun, Budget, int], MethodPlan]
    nothing: str
    trainable: Callable[[Suite], Collection[str] | None] = lambda suite: None
    looks: str = CALL


def source_of(settings: TraceSettings, written: bool) -> TaskSource:
    """`written`: a model plays the role of the generator."""
    if settings.synthesis == "select":
        return SELECT
    return WRITE if written else GENERATE


# -- the suite's generator ------------------------------------------------------------------------


def generated(looked: Looked, chosen: Sequence[Verdict]) -> TrainingTasks:
    """Of every capability that is worth training, as calibrated."""
    settings, lab = looked.budget.settings, looked.lab
    names = [verdict.name for verdict in chosen]
    results = calibrate.calibrate(lab, looked.base, names, settings, looked.pool(len(names)))
    looked.analysis.write(calibration=[c.as_json() for c in results])
    for result in results:
        lab.log(result.in_words())
    worth = [c for c in results if c.outcome != "dropped"]
    count, share = settings.synthetic_tasks, settings.in_context
    return {
        c.name: draw(lab.suite, c.name, count, c.mix, lab.seed, "train", in_context=share)
        for c in worth
    }


def _generated_planned(run: PlannedRun, budget: Budget, left: int) -> MethodPlan:
    if analyst.ROLE in run.models:
        raise UserError(
            "llm.analyst.by=endpoint finds capabilities that this project's generator has no tasks "
            "for. Set llm.generator.by=endpoint too, llm.analyst.by=program, or "
            "method.synthesis=select."
        )
    return MethodPlan(
        phases=_calibration(budget, left), needs=(GENERATOR, *budget.settings.also_needs)
    )


# -- a language model -----------------------------------------------------------------------------


def written(looked: Looked, chosen: Sequence[Verdict]) -> TrainingTasks:
    """For the capabilities where it could."""
    lab, analysis = looked.lab, looked.analysis
    leaks, pool = held_out(lab.suite, looked.tasks), looked.pool(len(chosen))
    settings, tools = looked.budget.settings, analysis.tools()
    generation = Generation(lab, looked.base, settings, tools, leaks, pool)
    by_name: dict[str, tuple[Task, ...]] = {}
    for n, verdict in enumerate(chosen, start=1):
        examples = [e.trajectory for e in analysis.lacking(verdict.name)]
        tasks = generation.make(verdict.capability, examples, len(chosen) - n)
        if tasks is not None:
            by_name[verdict.name] = tasks
    listed = [{"name": name, "reason": why} for name, why in generation.dropped.items()]
    analysis.write(generator={"prompt": PROMPT_VERSION}, dropped=listed)
    return by_name


def _written_planned(run: PlannedRun, budget: Budget, left: int) -> MethodPlan:
    settings = budget.settings
    if settings.in_context:
        raise UserError(
            f"method.in_context={settings.in_context} is for environments that the suite makes, "
            "and llm.generator.by=endpoint has a model write them. Set `method.in_context` to 0."
        )
    if not settings.calibration_rounds:
        raise UserError(
            "method.calibration_rounds=0, but an environment that a model wrote (llm.generator) is "
            "accepted by what its calibration measures. Raise `method.calibration_rounds` to 1 or "
            "more."
        )
    asked = {ROLE: budget.capabilities(left) * ATTEMPTS}
    return MethodPlan(phases=_calibration(budget, left), questions=asked)


# -- the target's training tasks ------------------------------------------------------------------


def selected(looked: Looked, chosen: Sequence[Verdict]) -> TrainingTasks:
    """The training tasks whose failures lack a capability, for suites that can make no tasks of
    their own, in the order of the analysis; a task may belong to several capabilities. One that no
    failure lacks by the majority of the labelling runs is left out.

    No calibration is run: the analysis has run these very tasks with the base agent, and its
    numbers are written down. None is dropped for them: each task has failed at least once."""
    analysis, lab = looked.analysis, looked.lab
    by_name: dict[str, tuple[Task, ...]] = {}
    for verdict in chosen:
        lacking = {e.task.id: e.task for e in analysis.lacking(verdict.name)}
        if lacking:
            by_name[verdict.name] = tuple(lacking.values())
    measured, reward = [], looked.budget.settings.adapter_reward
    for name, tasks in by_name.items():
        ids = [task.id for task in tasks]
        groups = [[e.trajectory for e in analysis.episodes if e.task.id == i] for i in ids]
        rounds = [{**vars(calibrate.measure(groups, reward)), "outside": []}]
        measured.append({"name": name, "outcome": SELECTED, "tasks": ids, "rounds": rounds})
        lab.log(f"{name}: {len(tasks)} training tasks whose failures lack it")
    analysis.write(calibration=measured)
    return by_name


def _calibration(budget: Budget, left: int) -> tuple[Phase, ...]:
    if not budget.settings.calibration_round:
        return ()
    pool = budget.calibration(left, budget.capabilities(left))
    least = 0 if budget.free else budget.settings.calibration_round
    named = "method.calibration_groups x method.calibration_group_size"
    return (Phase("calibration", pool, most=True, least=least, setting=named),)


GENERATE = TaskSource(
    generated,
    _generated_planned,
    "the base agent already has what was selected",
    trainable=lambda suite: tuple(suite.capabilities()),
)
WRITE = TaskSource(written, _written_planned, "no environment was accepted")
SELECT = TaskSource(
    selected,
    lambda run, budget, left: MethodPlan(marks=(SELECTED,)),
    "no failure lacks what is selected",
    looks="analysis, which calibrates too",
)
