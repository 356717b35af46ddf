"""The last step: GRPO on the target's own training tasks, from what the steps before have trained.

The adapters are added up to one. The sum has the rank of all of them together; what is trained
further is its best approximation of the trainer's rank, by singular values
(`policies.routing.merge`). No router chooses afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trace_bench.core.protocols import Lab, MethodPlan, Need, Phase, Trainer, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.trace.settings import Budget, TraceSettings
from trace_bench.policies.routing.merge import Mixture, around, compress, merge
from trace_bench.trainers.start import start_of

NAME = "finish"
GOES_ON = Need("trainer", Trainer.check_start, "docs/trainers.md")


def finished(
    base: AgentSpec, traced: AgentSpec, settings: TraceSettings, tasks: Sequence[Task], lab: Lab
) -> AgentSpec:
    """The base agent with one adapter, trained on the target with all that is left: from the sum of
    what was `traced`, or from the base agent's where that is nothing."""
    start = summed(base, traced, settings.weight)
    if start != base:
        lab.checkpoint(start)
    rollouts, seed = lab.budget_left(), stable_seed(lab.seed, "trace", NAME)
    job = TrainingJob(NAME, start, tasks, rollouts, seed, settings.reward)
    return lab.trainer.train(job, lab)


def summed(base: AgentSpec, traced: AgentSpec, weight: float) -> AgentSpec:
    """The base agent with the sum of the adapters that are new in `traced`, each times `weight`."""
    new = [a for a in traced.adapters if a not in base.adapters]
    if not new:
        return base
    weights = tuple((a.name, weight) for a in new)
    if (first := start_of(base)) is not None:
        weights = (*weights, (first.name, around(w for _, w in weights)))
    merged = compress(merge(Mixture(weights), (*base.adapters, *new)), new[0], "merged")
    return replace(base, version="merged", adapters=(merged,))


def with_finish(plan: MethodPlan, budget: Budget, trainer: Trainer) -> MethodPlan:
    """The plan of what comes before, and this step's."""
    trainer.plan_training(budget.finish, NAME, ())
    last = Phase("training on the target", budget.finish, most=True, trains=True)
    return replace(
        plan,
        phases=(*plan.phases, last),
        adapters=plan.adapters + 1,
        needs=(*plan.needs, GOES_ON),
        routed=False,
        yardsticks=(),
    )
