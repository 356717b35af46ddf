"""GRPO on the target's own training tasks: one adapter, the whole budget."""

from __future__ import annotations

from collections.abc import Sequence

from trace_bench.core.protocols import Lab, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Task


class Grpo:
    """`protocols.Method`. Setting `reward`: "similarity" (the default) or "success"."""

    name = "grpo"

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with the adapter `grpo`, used for every task."""
        return lab.trainer.train(
            TrainingJob(
                name="grpo",
                agent=base,
                tasks=tasks,
                rollouts=lab.budget_left(),
                seed=stable_seed(lab.seed, "grpo", "train"),
                reward=str(lab.settings.get("reward", "similarity")),
            ),
            lab,
        )
