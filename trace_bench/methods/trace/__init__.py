"""TRACE: find the capabilities that an agent lacks, train one adapter for each, route between them.

    analysis rollouts -> labels -> selection -> synthetic tasks -> calibration -> GRPO -> router

Every rollout of every phase is charged to the budget. Everything follows from `lab.seed`, and every
call has a name that is the same when the run is repeated. Because the phases take shares of the
whole budget, a checkpoint of a large run is not what a run with that smaller budget gives.

`adapters=per_capability` is the method; `adapters=joint` trains a single adapter on all selected
environments with the same budget and uses it for every task. It is the comparison that tells what
separate adapters and routing bring, and a run of its own, since its training is not free.

Figures land in `capabilities.json`: {"analysis", "thresholds", "candidates", "calibration",
"training", "labels", "outcome"}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_bench.core.protocols import Lab
from trace_bench.core.types import AgentSpec, Purpose, Task
from trace_bench.methods.trace import budget as budgets
from trace_bench.methods.trace.analysis.phase import Analysis
from trace_bench.methods.trace.analysis.select import Verdict
from trace_bench.methods.trace.routing import describe
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.methods.trace.synthesis import calibrate, generate
from trace_bench.methods.trace.synthesis.draw import generator, opening
from trace_bench.methods.trace.synthesis.generate.leaks import Leaks, texts_of
from trace_bench.methods.trace.training import Job, Trained, assemble, jobs, of_tasks, train

UNSPENT = "the last adapter ended early, or the rest was too little for another iteration"


class Trace:
    """`protocols.Method`. Settings come with the lab (`lab.settings`)."""

    name = "trace"

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with an adapter per missing capability and a router; the base agent itself
        when no capability passes the thresholds. UserError when the budget is too small."""
        return _Run(base, tasks, lab).fit()


class _Run:
    """One fit: what its phases share. `report` is what capabilities.json holds so far."""

    def __init__(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> None:
        self.base, self.tasks, self.lab = base, tasks, lab
        self.settings = TraceSettings.of(lab.settings)
        self.budget = lab.budget_left()
        self.free = not lab.charges(Purpose.ANALYSIS)
        budgets.check_budget(self.budget, self.settings, len(tasks), self.free)
        self.written = lab.room(generate.ROLE) is not None  # a model writes the environments
        self.trainable = None if self.written else generator(lab.suite).capabilities()
        self.report: dict[str, Any] = {}
        self.analysis = Analysis(lab, self.settings, self.write)

    def fit(self) -> AgentSpec:
        count = budgets.analysis_rollouts(self.budget, self.settings, len(self.tasks), self.free)
        self.analysis.play(self.base, self.tasks, count)
        verdicts = self.analysis.choose(self.trainable)
        chosen = self.afford(verdicts)
        if not chosen:
            return self.give_up("no capability above the thresholds: the base agent is returned")
        coverage = {v.name: v.mean("coverage") for v in chosen}
        if self.written:
            made = self.generate(chosen)
            if not made:
                return self.give_up("no environment was accepted: the base agent is returned")
            return self.train(of_tasks(made, coverage, self.settings))
        mixes = self.calibrate([v.name for v in chosen])
        if not mixes:
            return self.give_up("the base agent already has what was selected: it is returned")
        return self.train(jobs(self.lab, mixes, coverage, self.settings))

    # -- what is trained ----------------------------------------------------------------------

    def afford(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The selected capabilities that can be trained and that the budget pays for."""
        selected = [v for v in verdicts if v.selected]
        for v in selected:
            if not self.can_train(v):
                kind = "a control" if v.control else "without a generator"
                self.lab.say(f"{v.name} is selected but not trained: it is {kind}")
        able = [v for v in selected if self.can_train(v)]
        most = budgets.affordable(self.lab.budget_left(), self.settings, self.free)
        for v in able[most:]:
            self.lab.say(
                f"{v.name} is selected but not trained: "
                f"budget and method.max_capabilities allow {most}"
            )
        return able[:most]

    def can_train(self, verdict: Verdict) -> bool:
        return not verdict.control if self.trainable is None else verdict.name in self.trainable

    def generate(self, chosen: Sequence[Verdict]) -> dict[str, tuple[Task, ...]]:
        """Tasks of the environments that a model wrote, for the capabilities where it could."""
        left = self.lab.budget_left()
        pool = budgets.calibration_pool(self.budget, left, len(chosen), self.settings, self.free)
        tools = self.analysis.tools()
        generation = generate.Generation(
            self.lab, self.base, self.settings, tools, self.leaks(), pool
        )
        self.write(generator={"prompt": generate.VERSION})
        made: dict[str, tuple[Task, ...]] = {}
        for n, v in enumerate(chosen, start=1):
            wanted = generate.Wanted(v.capability, self.analysis.lacking(v.name))
            if (tasks := generation.make(wanted, len(chosen) - n)) is not None:
                made[v.name] = tasks
        return made

    def leaks(self) -> Leaks:
        """What an environment may not repeat: what only tasks outside the training splits say."""
        suite = self.lab.suite
        splits = [s for s in suite.splits() if not s.startswith(("train", "fit"))]
        train = {task.id for task in self.tasks}
        hidden = [t for s in splits for t in suite.tasks(s) if t.id not in train]
        return Leaks.of(*(map(self.said, tasks) for tasks in (hidden, self.tasks)))

    def said(self, task: Task) -> list[str]:
        """A task's texts, and its first message where that costs nobody an answer."""
        asks = getattr(self.lab.suite, "asks", False)
        return texts_of(task) + ([] if asks else [opening(self.lab.suite, task)[0]])

    def calibrate(self, names: Sequence[str]) -> dict[str, Any]:
        """How to draw the tasks of every capability that is worth training."""
        left = self.lab.budget_left()
        pool = budgets.calibration_pool(self.budget, left, len(names), self.settings, self.free)
        results = calibrate.calibrate(self.lab, self.base, names, self.settings, pool)
        self.write(calibration=[calibrate.as_json(c) for c in results])
        self.lab.say(calibrate.table(results))
        return dict(calibrate.kept(results))

    def train(self, work: Sequence[Job]) -> AgentSpec:
        def after(done: Sequence[Trained]) -> None:
            self.write(
                training=[
                    {
                        "name": t.job.name,
                        "adapter": t.adapter.name,
                        "tasks": len(t.job.tasks),
                        "share": t.share,
                        "spent": t.spent,
                    }
                    for t in done
                ]
            )

        done = train(self.lab, self.base, work, self.settings, self.agent, after)
        unspent = self.lab.budget_left()
        why = {"reason": UNSPENT} if unspent else {}
        self.write(outcome={"trained": [t.job.name for t in done], "unspent": unspent, **why})
        return self.agent(done)

    def agent(self, done: Sequence[Trained]) -> AgentSpec:
        """The agent with the adapters that are there, and a router that knows only them."""
        names = [t.job.name for t in done]
        skills = {c.name: c.description for c in self.analysis.candidates}
        router = describe(self.lab, done, self.analysis.known(names), skills, self.settings)
        return assemble(self.base, done, router)

    # -- the record ---------------------------------------------------------------------------

    def give_up(self, why: str) -> AgentSpec:
        unspent = self.lab.budget_left()
        self.lab.say(f"{why}; {unspent} of {self.budget} rollouts stay unspent")
        self.write(outcome={"trained": [], "unspent": unspent, "reason": why})
        return self.base

    def write(self, **parts: Any) -> None:
        self.report.update(parts)
        self.lab.write("capabilities.json", self.report)
