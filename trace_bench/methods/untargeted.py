"""GRPO on synthetic environments that no analysis chose: one adapter for all of them.

The paper's baseline from Agent World Model: no analysis, no calibration, no routing; every
environment that the suite's generator can make has the same share of the tasks. Against TRACE it
tells what targeting brings, against GRPO what the target's own tasks bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trace_bench.core.protocols import Lab, Method, MethodPlan, Need, PlannedRun, Suite
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.grpo import one_training, train_once
from trace_bench.methods.making import Mix, TaskSettings, draw, generator, interleave

GENERATOR = Need(
    "env",
    Suite.synthetic,
    "docs/environments.md",
    "With method=grpo its training tasks are trained on instead.",
)


class Untargeted(Method):
    """GRPO on synthetic environments that were not chosen by the agent's failures: one adapter on
    all.

    The target's training tasks are not looked at."""

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        suite, count = generator(lab.suite), self.settings.synthetic_tasks
        drawn = [
            draw(suite, capability, count, Mix(), lab.seed, "train")
            for capability in suite.capabilities()
        ]
        return train_once("untargeted", base, interleave(drawn), lab, reward=self.settings.reward)

    def plan(self, run: PlannedRun) -> MethodPlan:
        return replace(one_training(run, "untargeted"), needs=(GENERATOR,))
