"""TRACE: its steps in order, and what they will do in a run.

`adapters=per_capability` is the method; `adapters=joint` trains a single adapter on all selected
environments with the same budget and uses it for every task. It is the comparison that tells what
separate adapters and routing bring, and a run of its own, since its training is not free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, Phase, PlannedRun, Yardstick
from trace_bench.core.types import AgentSpec, Purpose, Task
from trace_bench.methods.looking.analysis import Analysis, CapabilityReport, planned
from trace_bench.methods.looking.capabilities import Verdict
from trace_bench.methods.trace import training
from trace_bench.methods.trace.budget import Budget
from trace_bench.methods.trace.gates import GateTraining
from trace_bench.methods.trace.generate.questions import GENERATOR
from trace_bench.methods.trace.routing import RouterData
from trace_bench.methods.trace.settings import JOINT, TraceSettings
from trace_bench.methods.trace.tasks import Drawer, Made, source_of
from trace_bench.methods.trace.training import Trained, assemble, jobs

CAVEAT = "its phases are shares of the whole budget"
UNSPENT = "the last adapter ended early, or the rest was too little for another iteration"


class Trace(Method):
    """Find by contrast which capabilities the agent lacks, train one LoRA adapter for each in an
    environment of its own, route tasks to them."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._drawer = Drawer()

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab, later: int = 0) -> AgentSpec:
        """The base agent with an adapter per missing capability and a router, or itself when no
        capability passes the thresholds. `later`: rollouts that are left for what comes after."""
        if not tasks:
            raise UserError(
                "method=trace needs training tasks and was given none; change `env.suite`."
            )
        self.settings.route.check_base(base)
        free = not lab.charges(Purpose.ANALYSIS)
        budget = Budget(self.settings, lab.budget_left() - later, free, later)
        budget.check(lab.trainer)
        return _Fit(base, tasks, lab, budget, self._drawer).run()

    def plan(self, run: PlannedRun) -> MethodPlan:
        settings = self.settings
        budget = Budget(settings, run.budget, free=Purpose.ANALYSIS not in run.charged)
        budget.check(run.trainer)
        source = source_of(settings, GENERATOR in run.models)
        left = budget.after_looking(run.tasks)
        steps = (
            planned(settings, run, budget.looking(run.tasks), source.looks),
            source.planned(run, budget, left),
            training.planned(budget, left),
            MethodPlan() if settings.joint else settings.route.planned(budget.gate),
        )
        plan = reduce(MethodPlan.then, steps)
        if not run.tasks:  # then the number of analysis rollouts is not known either
            plan = replace(plan, phases=(Phase("training", run.budget, most=True, trains=True),))
        return replace(plan, caveat=CAVEAT, yardsticks=self.yardsticks())

    def yardsticks(self) -> tuple[Yardstick, ...]:
        """One adapter on all environments, where several are trained."""
        if self.settings.joint or self.settings.max_capabilities == 1:
            return ()
        joint = type(self)(replace(self.settings, adapters=JOINT))
        joint._drawer = self._drawer
        return (Yardstick("joint", "one joint adapter", joint),)


class _Fit:
    def __init__(
        self, base: AgentSpec, tasks: Sequence[Task], lab: Lab, budget: Budget, drawer: Drawer
    ) -> None:
        self.base, self.tasks, self.lab, self.budget = base, tasks, lab, budget
        self.settings = settings = budget.settings
        self.write = CapabilityReport(lab)
        self.analysis = Analysis(lab, settings, self.write)
        source = source_of(settings, lab.prompt_limit(GENERATOR) is not None)
        self.source = source(lab, base, tasks, budget, self.analysis, self.write, drawer)
        self.trainable = self.source.trainable  # refused now, before anything is run

    def run(self) -> AgentSpec:
        self.analysis.play(self.base, self.tasks, self.budget.looking(len(self.tasks)))  # 1 look
        chosen = self.afford(self.analysis.choose(self.trainable))  # 2 choose, 3 share the budget
        if not chosen:
            return self.give_up("no capability above the thresholds: the base agent is returned")
        made = self.source.make(chosen)  # 4 make tasks
        if not made:
            return self.give_up(self.source.nothing)
        seen = RouterData(self.lab, self.base, self.analysis)
        done = self.train(made, seen)  # 5 train
        if not done:
            return self.give_up(
                "no adapter that may be used was trained: the base agent is returned"
            )
        agent = self.routed(done, seen)  # 6 route
        if self.budget.gate:
            agent = GateTraining(self.lab, agent, self.tasks, self.budget).run()  # 7 the gate
        unspent = self.budget.unspent(self.lab)
        why = {"reason": UNSPENT} if unspent else {}
        self.write(outcome={"trained": [t.job.name for t in done], "unspent": unspent, **why})
        return agent

    def afford(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The selected capabilities that can be trained and that the budget pays for."""
        able = []
        for v in (v for v in verdicts if v.selected):
            if not v.control if self.trainable is None else v.name in self.trainable:
                able.append(v)
            else:
                kind = "a control" if v.control else "without a generator"
                self.lab.log(f"{v.name} is selected but not trained: it is {kind}")
        most = self.budget.capabilities(self.budget.left(self.lab))
        why = f"budget and method.max_capabilities allow {most}"
        for v in able[most:]:
            self.lab.log(f"{v.name} is selected but not trained: {why}")
        return able[:most]

    def train(self, made: Made, seen: RouterData) -> list[Trained]:
        def after(done: Sequence[Trained]) -> None:
            self.write(training=[t.as_json() for t in done])

        with self.source.listening(), self.settings.route.listening(seen):
            return training.train(
                self.lab,
                self.base,
                jobs(made, self.settings),
                self.budget,
                lambda done: self.routed(done, seen),
                after,
                self.source.keeps,
            )

    def routed(self, done: Sequence[Trained], seen: RouterData) -> AgentSpec:
        """The agent with the adapters that are there, and a router that knows only them."""
        route = self.settings.route
        return assemble(self.base, done, None if self.settings.joint else route.router(done, seen))

    def give_up(self, why: str) -> AgentSpec:
        unspent = self.budget.unspent(self.lab)
        self.lab.log(f"{why}; {unspent} of {self.budget.total} rollouts stay unspent")
        self.write(outcome={"trained": [], "unspent": unspent, "reason": why})
        return self.base
