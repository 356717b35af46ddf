"""GRPO on synthetic environments that nobody chose: one adapter for all of them.

The idea of training on a broad set of made-up environments (the paper's baseline from Agent World
Model): no analysis, no calibration, no routing; every environment that the suite's generator can
make has the same share of the tasks. Against TRACE it tells what targeting brings, against GRPO
what the target's own tasks bring.
"""

from __future__ import annotations

from collections.abc import Sequence

from trace_bench.methods.trace.synthesize import Mix, draw, generator
from trace_bench.methods.trace.train import interleave
from trace_bench.protocols import Lab, TrainingJob
from trace_bench.store import stable_seed
from trace_bench.types import AgentSpec, Task


class Untargeted:
    """`protocols.Method`. Settings: `synthetic_tasks` per environment, `contrast_share`, `reward`.
    The target's training tasks are not looked at."""

    name = "untargeted"

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with the adapter `untargeted`, used for every task."""
        settings = lab.settings
        mix = Mix(float(settings["contrast_share"]))
        count = int(settings["synthetic_tasks"])
        drawn = [
            draw(lab.suite, name, count, mix, lab.seed, "train").tasks
            for name in generator(lab.suite).capabilities()
        ]
        return lab.trainer.train(
            TrainingJob(
                name="untargeted",
                agent=base,
                tasks=interleave(drawn),
                rollouts=lab.budget_left(),
                seed=stable_seed(lab.seed, "untargeted", "train"),
                reward=str(settings["reward"]),
            ),
            lab,
        )
