"""TRACE, and then GRPO on the target: TRACE's adapters are added up to one, which is trained
further on the target's own training tasks with the last part of the budget. No router.

The sum has the rank of all adapters together; what is trained further is its best approximation of
the trainer's rank, by singular values (`policies.routing.merge`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trace_bench.core.protocols import (
    ContinuesAdapters,
    Lab,
    MethodPlan,
    Need,
    Phase,
    PlannedRun,
    TrainingJob,
    Yardstick,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.trace.method import Trace
from trace_bench.methods.trace.settings import TraceFinishSettings
from trace_bench.policies.routing.merge import Mixture, around, compress, merge
from trace_bench.trainers.record import start_of

NAME = "finish"
GOES_ON = Need("trainer", ContinuesAdapters, "docs/trainers.md")


class TraceFinish(Trace):
    """`protocols.Method`."""

    title = "trace_finish"

    def __init__(self, settings: TraceFinishSettings) -> None:
        super().__init__(replace(settings, route_weight=settings.merge_weight))
        self.finish = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with one adapter, used for every task. When TRACE finds nothing to train,
        GRPO starts from the base agent, with all that is left."""
        reserve = int(self.finish.finish_share * lab.budget_left())
        found = self.fit_leaving(reserve, base, tasks, lab)
        job = TrainingJob(
            name=NAME,
            agent=base,
            tasks=tasks,
            rollouts=lab.budget_left(),
            seed=stable_seed(lab.seed, "trace_finish", "train"),
            reward=self.settings.reward,
        )
        new = [a for a in found.adapters if a not in base.adapters]
        if not new:
            return lab.trainer.train(job, lab)
        weights = tuple((a.name, self.finish.merge_weight) for a in new)
        if (own := start_of(base)) is not None:
            weights = (*weights, (own.name, around(w for _, w in weights)))
        merged = compress(merge(Mixture(weights), (*base.adapters, *new)), new[0], "merged")
        start = replace(base, version="merged", adapters=(merged,))
        lab.checkpoint(start)
        return lab.trainer.train(replace(job, agent=start), lab)

    def plan(self, run: PlannedRun) -> MethodPlan:
        reserve = int(self.finish.finish_share * run.budget)
        run.trainer.plan_training(reserve, NAME, ())
        plan = super().plan(replace(run, budget=run.budget - reserve))
        training = plan.phases[-1]
        phases = (*plan.phases[:-1], Phase("training", training.rollouts + reserve, most=True))
        return replace(
            plan,
            phases=phases,
            adapters=plan.adapters + 1,
            needs=(*plan.needs, GOES_ON),
            routed=False,
        )

    def yardsticks(self) -> tuple[Yardstick, ...]:
        """None: `method=joint` is a method of its own."""
        return ()
