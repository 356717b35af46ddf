"""TRACE: find the capabilities that an agent lacks, train one adapter for each, route between them.

    look -> choose -> share the budget -> make tasks -> train -> route -> gate

Every rollout of every step is charged to the budget. Because the steps take shares of the whole
budget, a checkpoint of a large run is not what a run with that smaller budget gives.

    settings.py     every number with where it comes from (those of a route are in routing.py), and
                    3 who gets how many rollouts: `Budget`
    fit.py          the steps in order, and 5 one adapter for each

    ../looking/     1 run training tasks and label what happened; 2 which capabilities are missing
    tasks.py        4 tasks of a capability: drawn (../making.py), written or selected
    calibrate.py      how hard drawn or written tasks are for the base agent
    generate/         a language model writes them
    routing.py      6 which adapter acts; learned.py: from what it is learned
    gates.py        7 GRPO of the gate

Figures land in `capabilities.json`: {"analysis", "thresholds", "candidates", "calibration",
"training", "labels", "outcome"}; where a model writes the environments also {"generator",
"dropped"}: the capabilities without an adapter that may be used, each with the reason.

`adapters=joint` trains a single adapter on all selected environments with the same budget, which
tells what separate adapters and routing bring. It is a run of its own, since it is not free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun, Yardstick
from trace_bench.core.types import AgentSpec, Purpose, Task
from trace_bench.methods.looking.analysis import planned
from trace_bench.methods.trace.fit import Drawn
from trace_bench.methods.trace.generate.questions import GENERATOR
from trace_bench.methods.trace.settings import JOINT, Budget, TraceSettings
from trace_bench.methods.trace.tasks import way_of

CAVEAT = "its phases are shares of the whole budget"


class Trace(Method):
    """Find by contrast which capabilities the agent lacks, train one LoRA adapter for each in an
    environment of its own, route tasks to them."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._drawn: Drawn = {}  # of which the yardstick asks for the same

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab, later: int = 0) -> AgentSpec:
        """The base agent with an adapter per missing capability and a router, or itself when no
        capability passes the thresholds. `later`: rollouts that are left for what comes after."""
        if not tasks:
            raise UserError(
                "method=trace needs training tasks and was given none; change `env.suite`."
            )
        free = not lab.charges(Purpose.ANALYSIS)
        budget = Budget(self.settings, lab.budget_left() - later, free, later)
        budget.check(lab.trainer)
        way = way_of(self.settings, lab.prompt_limit(GENERATOR) is not None)
        return way(base, tasks, lab, budget, self._drawn).run()

    def plan(self, run: PlannedRun, later: int = 0) -> MethodPlan:
        settings = self.settings
        budget = Budget(settings, run.budget, Purpose.ANALYSIS not in run.charged, later)
        budget.check(run.trainer)
        way = way_of(settings, GENERATOR in run.models)
        left = budget.after_looking(run.tasks)
        budget.check_training(run.trainer, left)
        training = Phase("training", budget.training(left), most=True, trains=True)
        most = 1 if settings.joint else budget.capabilities(left)
        steps = (
            planned(settings, run, budget.looking(run.tasks), way.looks),
            way.planned(run, budget, left),
            MethodPlan(phases=(training,), adapters=most, trains=True),
            MethodPlan() if settings.joint else settings.route.planned(budget.gate),
        )
        plan = reduce(MethodPlan.then, steps)
        if not run.tasks:  # then the number of analysis rollouts is not known either
            plan = replace(plan, phases=(replace(training, rollouts=run.budget),))
        return replace(plan, caveat=CAVEAT, yardsticks=self.yardsticks())

    def yardsticks(self) -> tuple[Yardstick, ...]:
        """One adapter on all environments, where several are trained."""
        if self.settings.joint or self.settings.max_capabilities == 1:
            return ()
        joint = type(self)(replace(self.settings, adapters=JOINT))
        joint._drawn = self._drawn
        return (Yardstick("joint", "one joint adapter", joint),)
