"""TRACE: find the capabilities that an agent lacks, train one adapter for each, route between them.

    look -> choose -> share -> make tasks -> train -> route -> finish

Every rollout of every step is charged to the budget. Because the steps take shares of the whole
budget, a checkpoint of a large run is not what a run with that smaller budget gives.

    settings.py     every number with where it comes from (those of a route are in its own file),
                    and who gets how many rollouts: `Budget`
    ../looking/     look: run training tasks, label what happened; choose: which capabilities are
                    missing
    tasks.py        make tasks of a capability: drawn (../making.py), written or selected
    calibrate.py      how hard drawn or written tasks are for the base agent
    generation.py     a language model writes them: the rounds, and what it is asked
    checks.py         what its module must pass before a rollout is spent on it; held-out texts
    experts.py      share the budget, train the adapters; what a route is learned from (the routes:
                    ../../policies/routing/); the last share, on the target's own training tasks
    gate.py         the route that is trained itself

Figures land in `capabilities.json`: {"analysis", "thresholds", "candidates", "calibration",
"training", "labels", "outcome"}; where a model writes the environments also {"generator",
"dropped"}: the capabilities without an environment, each with the reason.

`adapters=joint` trains a single adapter on all selected environments with the same budget, which
tells what separate adapters and routing bring. It is a run of its own, since it is not free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

from trace_bench.core.protocols import Lab, Method, MethodPlan, PlannedRun, Yardstick
from trace_bench.core.types import AgentSpec, Purpose, Task
from trace_bench.methods.looking.analysis import Analysis, CapabilityReport, planned
from trace_bench.methods.trace.experts import (
    TrainingEvidence,
    affordable,
    composed,
    finished,
    train_experts,
    with_finish,
)
from trace_bench.methods.trace.gate import GateTraining, with_gate
from trace_bench.methods.trace.generation import ROLE
from trace_bench.methods.trace.settings import JOINT, Budget, TraceSettings
from trace_bench.methods.trace.tasks import Looked, source_of

NONE = "no capability above the thresholds"
CAVEAT = "its phases are shares of the whole budget"
UNSPENT = "the last adapter ended early, or the rest was too little for another iteration"


class Trace(Method):
    """Find by contrast which capabilities the agent lacks, train one LoRA adapter for each in an
    environment of its own, route tasks to them."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with an adapter per missing capability and a router, or itself when no
        capability passes the thresholds; with one adapter where the target finishes it."""
        settings, write = self.settings, CapabilityReport(lab)
        budget = Budget(settings, lab.budget_left(), free=not lab.charges(Purpose.ANALYSIS))
        source = source_of(settings, lab.prompt_limit(ROLE) is not None)
        trainable, analysis = source.trainable(lab.suite), Analysis(lab, settings, write)
        compose = partial(composed, base, settings, TrainingEvidence(lab, base))

        analysis.play(base, tasks, budget.looking(len(tasks)))  # look
        verdicts = analysis.choose(trainable)  # choose
        chosen = affordable(verdicts, trainable, budget, lab)  # share
        looked = Looked(base, tasks, lab, budget, analysis)
        training = source.make(looked, chosen) if chosen else {}  # make tasks
        experts = train_experts(base, chosen, training, lab, budget, compose, write)  # train
        agent = compose(experts)  # route
        if budget.gate and experts:
            agent = GateTraining(lab, agent, tasks, settings).run()
        if settings.finish:
            agent = finished(base, agent, settings, tasks, lab)  # finish

        why = ""
        if not chosen:
            untrained = ", ".join(v.name for v in verdicts if v.selected)
            why = f"{untrained} cannot be trained" if untrained else NONE
        elif not experts:
            why = "no adapter was trained" if training else source.nothing
        unspent = lab.budget_left()
        if why and not settings.finish:
            lab.leave(why)
        if why:
            lab.log(f"{why}; {unspent} of {budget.total} rollouts stay unspent")
        reason = {"reason": why or UNSPENT} if why or unspent else {}
        write(outcome={"trained": [e.name for e in experts], "unspent": unspent, **reason})
        return agent

    def plan(self, run: PlannedRun) -> MethodPlan:
        settings = self.settings
        budget = Budget(settings, run.budget, Purpose.ANALYSIS not in run.charged)
        source = source_of(settings, ROLE in run.models)
        left = budget.after_looking(run.tasks)
        training = budget.training(run.trainer, left)
        most = 1 if settings.joint else budget.capabilities(left)
        steps = [
            planned(settings, run, budget.looking(run.tasks), source.looks),
            source.planned(run, budget, left),
            MethodPlan(phases=(training,), adapters=most, trains=True),
        ]
        if not settings.joint:
            steps.append(MethodPlan(needs=settings.route.needs, routed=settings.route.asks))
        plan = reduce(MethodPlan.then, steps)
        if not run.tasks:  # then the number of analysis rollouts is not known either
            plan = replace(plan, phases=(replace(training, rollouts=budget.adapters),))
        if budget.gate:
            plan = with_gate(plan, budget.gate, run.trainer)
        plan = replace(plan, caveat=CAVEAT, yardsticks=self.yardsticks())
        return with_finish(plan, budget, run.trainer) if settings.finish else plan

    def yardsticks(self) -> tuple[Yardstick, ...]:
        """One adapter on all environments, where several are trained."""
        if self.settings.joint or self.settings.max_capabilities == 1:
            return ()
        joint = type(self)(replace(self.settings, adapters=JOINT))
        return (Yardstick("joint", "one joint adapter", joint),)
