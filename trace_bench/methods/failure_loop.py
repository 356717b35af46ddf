"""One policy, trained on what it fails at again and again: analysis, environments, training.

The shape of SENTINEL (arXiv 2606.12908) and of RAFT's reinforcement learning: in every round what
the current policy's failures lack is found as in TRACE, tasks for all of that are made, and the one
adapter is trained further on them. No calibration, and no router: against TRACE it tells what a
policy gains from being looked at again, against `joint` what the rounds bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import (
    ContinuesAdapters,
    Lab,
    Method,
    MethodPlan,
    Need,
    Phase,
    PlannedRun,
    TrainingJob,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Purpose, Task
from trace_bench.methods.looking.analysis import Analysis, planned, refuse_analyst
from trace_bench.methods.looking.capabilities import AnalysisSettings
from trace_bench.methods.making import GENERATOR, Mix, TaskSettings, draw, generator, interleave

GOES_ON = Need(
    "trainer",
    ContinuesAdapters,
    "docs/trainers.md",
    "With method.rounds=1 no round goes on from another's adapter.",
)


@dataclass(frozen=True)
class FailureLoopSettings(TaskSettings, AnalysisSettings):
    """`method.*` of `method=failure_loop`: those of TRACE's analysis, and these."""

    rounds: int = field(default=3, metadata=number(1))
    """Rounds of analysis and training, each with the same part of the training (ours; SENTINEL goes
    on until nothing more is gained)."""
    analysis_share: float = field(default=0.20, metadata=number(0, 1))
    """Part of a round that is analysis (ours: with 1,280 rollouts about one for each task)."""

    def looks(self, budget: int) -> list[int]:
        """Analysis rollouts of every round. The rest is training, shared equally."""
        each = int(self.analysis_share * (budget // self.rounds))
        return [max(self.analysis_minimum, each)] * self.rounds


class FailureLoop(Method):
    """Rounds of analysis, environments for what the failures lack, and training, with one policy:
    the shape of SENTINEL and RAFT."""

    def __init__(self, settings: FailureLoopSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with one adapter, or itself when no round found anything that it lacks."""
        agent, budget, settings = base, lab.budget_left(), self.settings
        report: list[dict[str, Any]] = []
        looks = settings.looks(budget)
        charged = lab.charges(Purpose.ANALYSIS)
        for turn, episodes in enumerate(looks):
            report.append({})

            def write(**parts: Any) -> None:
                report[-1].update(parts)
                lab.write("rounds.json", report)

            analysis = Analysis(lab, settings, write, f"analysis/{turn}")
            analysis.play(agent, tasks, episodes)
            able = generator(lab.suite).capabilities()
            names = [v.name for v in analysis.choose(able) if v.selected and v.name in able]
            names = names[: settings.max_capabilities]
            write(trained=names)
            later = sum(looks[turn + 1 :]) if charged else 0
            rollouts = (lab.budget_left() - later) // (len(looks) - turn)
            if names:
                seed = stable_seed(lab.seed, "failure_loop", turn)
                count = settings.synthetic_tasks
                drawn = [draw(lab.suite, name, count, Mix(), seed, "train") for name in names]
                made, round_name = interleave(drawn), f"round{turn + 1}"
                job = TrainingJob(round_name, agent, made, rollouts, seed, settings.reward)
                agent = lab.trainer.train(job, lab)  # it goes on from the agent's adapter
            else:
                lab.log(f"round {turn + 1}: no capability above the thresholds, no training")
        if left := lab.budget_left():
            lab.log(f"{left} of {budget} rollouts unspent")
        return agent

    def plan(self, run: PlannedRun) -> MethodPlan:
        """UserError when a round is too small, and where a model is the analyst."""
        refuse_analyst(run, "Set llm.analyst.by=program, or `method` to trace.")
        looks = sum(self.settings.looks(run.budget))
        training = run.budget - (looks if Purpose.ANALYSIS in run.charged else 0)
        least = training // self.settings.rounds
        if least < 2:
            raise UserError(
                f"budget={run.budget} is too small for method=failure_loop: each of its "
                f"{self.settings.rounds} rounds (method.rounds) has "
                f"{self.settings.analysis_minimum} analysis rollouts or more "
                "(method.analysis_minimum), and training. Raise `budget`, or lower `method.rounds`."
            )
        run.trainer.plan_training(least, "round1", ())
        rounds = MethodPlan(
            phases=(Phase("training", training, most=True, trains=True),),
            needs=(GENERATOR, *([GOES_ON] if self.settings.rounds > 1 else [])),
            adapters=self.settings.rounds,
            trains=True,
            caveat="its rounds are shares of the whole budget",
        )
        return planned(self.settings, run, looks).then(rounds)
