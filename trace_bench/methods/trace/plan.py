"""What TRACE will do in a run, from its settings and the budget: phases, needs, questions."""

from __future__ import annotations

import math

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    FineTunes,
    HasMilestones,
    HasReference,
    MethodPlan,
    Need,
    Phase,
    PlannedRun,
    RanksLabels,
    ShowsState,
    Synthesizes,
)
from trace_bench.methods.trace import budget as budgets
from trace_bench.methods.trace import gates
from trace_bench.methods.trace.analysis import analyst
from trace_bench.methods.trace.settings import AnalysisSettings, TraceSettings
from trace_bench.methods.trace.synthesis.from_training import MARK
from trace_bench.methods.trace.synthesis.generate import generation, judge
from trace_bench.methods.trace.training import JOINT

CAVEAT = "its phases are shares of the whole budget"
TASKS, METHODS = "docs/environments.md", "docs/methods.md"
LABELS = Need(
    "env",
    HasReference,
    TASKS,
    "With llm.analyst.by=endpoint a model labels the episodes instead.",
    HasMilestones,
)
GENERATOR = Need(
    "env",
    Synthesizes,
    TASKS,
    "With method.synthesis=select the training tasks are trained on instead; with "
    "llm.generator.by=endpoint a model writes environments.",
)
LETTERS = Need("policy", RanksLabels, METHODS, "With method.route=retrieval no model is asked.")
TUNING = Need(
    "trainer",
    FineTunes,
    "docs/routing.md",
    "With method.gate_share=0 the gate stays as it starts.",
)
STATES = Need(
    "policy", ShowsState, "docs/routing.md", "With method.route=retrieval no hidden state is read."
)


def trace_plan(settings: TraceSettings, run: PlannedRun, free: bool) -> MethodPlan:
    """The plan without yardsticks. `free`: the budget pays for training only. UserError for roles
    that do not fit together."""
    kept = gates.reserve(run.budget, settings)
    budget = run.budget - kept
    analysis = budgets.analysis_rollouts(budget, settings, run.tasks, free)
    left = budget if free else budget - analysis
    most = budgets.affordable(left, settings, free)
    joint, select = settings.adapters == JOINT, settings.synthesis == "select"
    asked = {
        "zero_shot": LETTERS,
        "both": LETTERS,
        "classifier": STATES,
        "soft": STATES,
        "gate": STATES,
    }
    need = None if joint else asked.get(settings.route)
    routed = need is LETTERS
    needs = [*label_needs(run), *([need] if need else [])]
    written = not select and generation.ROLE in run.models
    if kept:
        needs.append(TUNING)
    if not select and not written:
        refuse_analyst(
            run,
            "Set llm.generator.by=endpoint too, llm.analyst.by=program, or "
            "method.synthesis=select.",
        )
        needs.append(GENERATOR)
    if written:
        _refuse_unwritten(settings)
    questions = label_questions(settings, run, analysis)
    if written:
        attempts = most * settings.generator_rounds
        questions |= {generation.ROLE: attempts}
        questions |= {judge.ROLE: attempts} if judge.ROLE in run.models else {}
    return MethodPlan(
        phases=_phases(settings, run, analysis, left, most, free, kept),
        needs=tuple(needs),
        adapters=1 if joint else most,
        questions=questions,
        routed=routed,
        trains=True,
        caveat=CAVEAT,
        marks=(MARK,) if select else (),
    )


def _refuse_unwritten(settings: TraceSettings) -> None:
    """Raises UserError for settings that the environments of a model cannot be made with."""
    if not settings.calibration_rounds:
        raise UserError(
            "method.calibration_rounds=0, but an environment that a model wrote (llm.generator) is "
            "accepted by what its calibration measures. Raise `method.calibration_rounds` to 1 or "
            "more."
        )


def refuse_analyst(run: PlannedRun, instead: str) -> None:
    """Raises UserError where a model is the analyst and the suite's generator makes the tasks."""
    if analyst.ROLE in run.models:
        raise UserError(
            "llm.analyst.by=endpoint finds capabilities that this project's generator has no tasks "
            f"for. {instead}"
        )


def label_needs(run: PlannedRun) -> tuple[Need, ...]:
    """What the suite must have for the labels."""
    return () if analyst.ROLE in run.models else (LABELS,)


def label_questions(settings: AnalysisSettings, run: PlannedRun, episodes: int) -> dict[str, int]:
    """Questions to the analyst about so many episodes."""
    if analyst.ROLE not in run.models:
        return {}
    return {analyst.ROLE: 1 + settings.runs * math.ceil(episodes / analyst.BATCH)}


def _phases(
    settings: TraceSettings,
    run: PlannedRun,
    analysis: int,
    left: int,
    most: int,
    free: bool,
    kept: int,
) -> tuple[Phase, ...]:
    """`left`: rollouts after the analysis, without the `kept` ones for the gate; `most`:
    environments that they pay for."""
    last = (Phase("training of the gate", kept, most=True),) if kept else ()
    if not run.tasks:  # then the number of analysis rollouts is not known either
        return (Phase("training", run.budget, most=True),)
    if settings.synthesis == "select":
        return (
            Phase("analysis, which calibrates too", analysis),
            Phase("training", left, most=True),
            *last,
        )
    pool = budgets.calibration_pool(run.budget - kept, left, most, settings, free)
    once = 0 if free else settings.calibration_round  # one capability is calibrated at least
    calibration = Phase(f"calibration (up to {most} environments)", pool, most=True)
    return (
        Phase("analysis", analysis),
        *((calibration,) if settings.calibration_round else ()),
        Phase("training", left - once, most=True),
        *last,
    )
