"""GRPO on the target's own training tasks: one adapter, the whole budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trace_bench.core.protocols import (
    Lab,
    Method,
    MethodPlan,
    Phase,
    PlannedRun,
    TrainingJob,
)
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task


@dataclass(frozen=True)
class GrpoSettings:
    """`method.*` of `method=grpo`."""

    reward: Literal["similarity", "success"] = "similarity"
    """Which number of the score is the reward."""


class Grpo(Method):
    """GRPO on the target's own training tasks: one LoRA adapter, the whole budget, used for every
    task."""

    def __init__(self, settings: GrpoSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with the adapter `grpo`, used for every task."""
        return train_once("grpo", base, tasks, lab, reward=self.settings.reward)

    def plan(self, run: PlannedRun) -> MethodPlan:
        return one_training(run, "grpo")


def train_once(
    name: str,
    base: AgentSpec,
    tasks: Sequence[Task],
    lab: Lab,
    *,
    reward: str = "similarity",
    assignment: Mapping[str, Any] | None = None,
) -> AgentSpec:
    """The base agent with the adapter `name`, from one training job with all that is left."""
    job = TrainingJob(
        name=name,
        agent=base,
        tasks=tasks,
        rollouts=lab.budget_left(),
        seed=stable_seed(lab.seed, name, "train"),
        reward=reward,
        assignment=assignment,
    )
    return lab.trainer.train(job, lab)


def one_training(run: PlannedRun, name: str) -> MethodPlan:
    """The plan of a method that is one training job with the whole budget. UserError when that
    does not pay for an iteration. What the trainer cannot use of the budget stays unspent."""
    return MethodPlan(
        phases=(Phase("training", run.budget, most=True),),
        adapters=1,
        trains=True,
        caveat=run.trainer.plan_training(run.budget, name, run.points),
    )
