"""The method that changes nothing: what all others are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from trace_bench.core.protocols import Lab, Method, MethodPlan, PlannedRun
from trace_bench.core.types import AgentSpec, Task


class Base(Method):
    """The unchanged base model, with which every other method is compared. Spends no rollouts."""

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        return base

    def plan(self, run: PlannedRun) -> MethodPlan:
        return MethodPlan(learns=False)
