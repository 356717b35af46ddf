"""TRACE, and then GRPO on the target: TRACE's adapters are added up to one, which is trained
further on the target's own training tasks with the last part of the budget. No router.

The sum has the rank of all adapters together; what is trained further is its best approximation of
the trainer's rank, by singular values (`policies.routing.merge`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trace_bench.core.protocols import (
    Lab,
    Method,
    MethodPlan,
    Need,
    Phase,
    PlannedRun,
    Trainer,
    TrainingJob,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.trace import Trace
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.policies.routing.linear import Linear
from trace_bench.policies.routing.merge import Mixture, around, compress, merge
from trace_bench.trainers.start import start_of

NAME = "finish"
SHARE = 0.25  # of the budget for GRPO on the target's training tasks (ours)
GOES_ON = Need("trainer", Trainer.check_start, "docs/trainers.md")


@dataclass(frozen=True)
class TraceFinishSettings(TraceSettings):
    """`method.*` of `method=trace_finish`: TRACE's, and what comes after it."""

    route: Linear = field(default_factory=Linear)  # type: ignore[assignment]
    """No other: until the last part begins, all adapters act as the sum that it starts from."""


class TraceFinish(Method):
    """TRACE with a part of the budget, then its adapters added up to one and trained by GRPO on the
    target's own training tasks with the rest."""

    def __init__(self, settings: TraceFinishSettings) -> None:
        self.settings, self.trace = settings, Trace(settings)

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with one adapter, used for every task. When TRACE finds nothing to train,
        GRPO starts from the base agent, with all that is left."""
        traced = self.trace.fit(base, tasks, lab, later=self.last(lab.budget_left()))
        start = self.start(base, traced)
        if start != base:
            lab.checkpoint(start)
        rollouts, seed = lab.budget_left(), stable_seed(lab.seed, "trace_finish", "train")
        job = TrainingJob(NAME, start, tasks, rollouts, seed, self.settings.reward)
        return lab.trainer.train(job, lab)

    def last(self, budget: int) -> int:
        return int(SHARE * budget)

    def start(self, base: AgentSpec, traced: AgentSpec) -> AgentSpec:
        """The base agent with the sum of the adapters that TRACE has trained."""
        new = [a for a in traced.adapters if a not in base.adapters]
        if not new:
            return base
        # One adapter for everything acts whole, as TRACE's own agent has it.
        weight = 1.0 if self.settings.joint else self.settings.route.weight
        weights = tuple((a.name, weight) for a in new)
        if (first := start_of(base)) is not None:
            weights = (*weights, (first.name, around(w for _, w in weights)))
        merged = compress(merge(Mixture(weights), (*base.adapters, *new)), new[0], "merged")
        return replace(base, version="merged", adapters=(merged,))

    def plan(self, run: PlannedRun) -> MethodPlan:
        last = self.last(run.budget)
        run.trainer.plan_training(last, NAME, ())
        plan = self.trace.plan(replace(run, budget=run.budget - last), last)
        return replace(
            plan,
            phases=(*plan.phases, Phase("training of the sum", last, most=True, trains=True)),
            adapters=plan.adapters + 1,
            needs=(*plan.needs, GOES_ON),
            routed=False,
            yardsticks=(),
        )
