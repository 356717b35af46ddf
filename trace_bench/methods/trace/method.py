"""TRACE: the order of its phases, and what it will do in a run.

`adapters=per_capability` is the method; `adapters=joint` trains a single adapter on all selected
environments with the same budget and uses it for every task. It is the comparison that tells what
separate adapters and routing bring, and a run of its own, since its training is not free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, Method, MethodPlan, PlannedRun, Yardstick
from trace_bench.core.types import AgentSpec, Purpose, Task
from trace_bench.methods.trace import budget as budgets
from trace_bench.methods.trace import gates
from trace_bench.methods.trace.analysis.phase import Analysis
from trace_bench.methods.trace.analysis.select import Verdict
from trace_bench.methods.trace.classifier import Openings
from trace_bench.methods.trace.gates import GateTraining
from trace_bench.methods.trace.plan import trace_plan
from trace_bench.methods.trace.routing import check_base, describe
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.methods.trace.synthesis import calibrate, from_training
from trace_bench.methods.trace.synthesis.draw import Drawer, generator
from trace_bench.methods.trace.synthesis.generate.generation import ROLE, Generation, Wanted
from trace_bench.methods.trace.synthesis.generate.leaks import held_out
from trace_bench.methods.trace.synthesis.generate.prompt import VERSION
from trace_bench.methods.trace.training import JOINT, Job, Trained, assemble, jobs, train
from trace_bench.methods.trace.turns import Conversations
from trace_bench.trainers.record import start_of

UNSPENT = "the last adapter ended early, or the rest was too little for another iteration"


class Trace(Method):
    """`protocols.Method`."""

    title = "trace"  # as messages call it

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self._drawer = Drawer()

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The base agent with an adapter per missing capability and a router; the base agent itself
        when no capability passes the thresholds. UserError when the budget is too small."""
        return self.fit_leaving(0, base, tasks, lab)

    def fit_leaving(
        self, reserve: int, base: AgentSpec, tasks: Sequence[Task], lab: Lab
    ) -> AgentSpec:
        """`fit` with all of the budget but `reserve` rollouts."""
        if not tasks:
            raise UserError(
                f"method={self.title} needs training tasks and was given none; change `env.suite`."
            )
        check_base(base, self.settings)
        free = not lab.charges(Purpose.ANALYSIS)
        left = lab.budget_left() - reserve
        gates.check(left, self.settings, lab.trainer, free)
        budgets.check_budget(left, self.settings, free, self.title)
        return _Fit(base, tasks, lab, self.settings, free, self._drawer, reserve).run()

    def plan(self, run: PlannedRun) -> MethodPlan:
        """What the run will do, need and ask. UserError when the budget is too small."""
        free = Purpose.ANALYSIS not in run.charged
        gates.check(run.budget, self.settings, run.trainer, free)
        budgets.check_budget(run.budget, self.settings, free, self.title)
        return replace(trace_plan(self.settings, run, free), yardsticks=self.yardsticks())

    def yardsticks(self) -> tuple[Yardstick, ...]:
        """One adapter on all environments, unless this is it."""
        if self.settings.adapters == JOINT:
            return ()
        joint = type(self)(replace(self.settings, adapters=JOINT))
        joint._drawer = self._drawer
        return (Yardstick("joint", "one joint adapter", joint),)


class _Fit:
    """One fit: what its phases share. `report` is what capabilities.json holds so far."""

    def __init__(
        self,
        base: AgentSpec,
        tasks: Sequence[Task],
        lab: Lab,
        settings: TraceSettings,
        free: bool,
        drawer: Drawer,
        later: int,
    ) -> None:
        self.base, self.tasks, self.lab = base, tasks, lab
        self.settings, self.free, self.drawer = settings, free, drawer
        self.later = later
        self.reserve = later + gates.reserve(lab.budget_left() - later, settings)
        self.budget = self.left()  # of all that comes before the gate
        self.written = lab.prompt_limit(ROLE) is not None  # a model writes the environments
        # The capabilities that tasks can be made for; None: all that are no controls.
        unlimited = settings.synthesis == "select" or self.written
        self.trainable = None if unlimited else tuple(generator(lab.suite).capabilities())
        self.report: dict[str, Any] = {}
        self.generation: Generation | None = None  # where a model writes the environments
        self.analysis = Analysis(lab, settings, self.write)
        self.openings = Openings(lab, base, settings)
        self.conversations = Conversations(lab, settings)

    def left(self) -> int:
        """Rollouts of the budget that are left before the gate's."""
        return self.lab.budget_left() - self.reserve

    def unspent(self) -> int:
        """Rollouts that are left for all of this fit."""
        return self.lab.budget_left() - self.later

    def run(self) -> AgentSpec:
        count = budgets.analysis_rollouts(self.budget, self.settings, len(self.tasks), self.free)
        self.analysis.play(self.base, self.tasks, count)
        chosen = self.afford(self.analysis.choose(self.trainable))
        if not chosen:
            return self.give_up("no capability above the thresholds: the base agent is returned")
        if self.settings.synthesis == "select":
            tasks = self.select(chosen)
            if not tasks:
                return self.give_up("no failure lacks what is selected: the base agent is returned")
        elif self.written:
            tasks = self.generate(chosen)
            if not tasks:
                return self.give_up("no environment was accepted: the base agent is returned")
        else:
            tasks = self.draw([v.name for v in chosen])
            if not tasks:
                return self.give_up("the base agent already has what was selected: it is returned")
        return self.train(tasks)

    # -- which capabilities -------------------------------------------------------------------

    def afford(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The selected capabilities that can be trained and that the budget pays for."""
        selected = [v for v in verdicts if v.selected]
        for v in selected:
            if not self.can_train(v):
                kind = "a control" if v.control else "without a generator"
                self.lab.log(f"{v.name} is selected but not trained: it is {kind}")
        able = [v for v in selected if self.can_train(v)]
        most = budgets.affordable(self.left(), self.settings, self.free)
        for v in able[most:]:
            self.lab.log(
                f"{v.name} is selected but not trained: "
                f"budget and method.max_capabilities allow {most}"
            )
        return able[:most]

    def can_train(self, verdict: Verdict) -> bool:
        return not verdict.control if self.trainable is None else verdict.name in self.trainable

    # -- what is trained on -------------------------------------------------------------------

    def select(self, chosen: Sequence[Verdict]) -> dict[str, tuple[Task, ...]]:
        """Training tasks of every capability."""
        tasks = from_training.select(self.analysis, [v.name for v in chosen])
        self.write(calibration=from_training.as_json(self.analysis, tasks, self.settings))
        for name, of in tasks.items():
            self.lab.log(f"{name}: {len(of)} training tasks whose failures lack it")
        return tasks

    def generate(self, chosen: Sequence[Verdict]) -> dict[str, tuple[Task, ...]]:
        """Tasks of the environments that a model wrote, for the capabilities where it could."""
        left = self.left()
        pool = budgets.calibration_pool(self.budget, left, len(chosen), self.settings, self.free)
        tools, leaks = self.analysis.tools(), held_out(self.lab.suite, self.tasks)
        self.generation = Generation(self.lab, self.base, self.settings, tools, leaks, pool)
        self.write(generator={"prompt": VERSION})
        made: dict[str, tuple[Task, ...]] = {}
        for n, v in enumerate(chosen, start=1):
            examples = [e.trajectory for e in self.analysis.lacking(v.name)]
            wanted = Wanted(v.capability, examples)
            if (tasks := self.generation.make(wanted, len(chosen) - n)) is not None:
                made[v.name] = tasks
        self.write_dropped(self.generation)
        return made

    def write_dropped(self, generation: Generation) -> None:
        listed = generation.dropped.items()
        self.write(dropped=[{"name": name, "reason": why} for name, why in listed])

    def draw(self, names: Sequence[str]) -> dict[str, tuple[Task, ...]]:
        """The suite's synthetic tasks of every capability that is worth training, as calibrated."""
        left, settings = self.left(), self.settings
        pool = budgets.calibration_pool(self.budget, left, len(names), settings, self.free)
        results = calibrate.calibrate(self.lab, self.base, names, settings, pool)
        self.write(calibration=[calibrate.as_json(c) for c in results])
        self.lab.log(calibrate.table(results))
        suite, count, seed = self.lab.suite, settings.synthetic_tasks, self.lab.seed
        mixes = calibrate.kept(results)
        return {n: self.drawer.tasks(suite, n, count, mix, seed) for n, mix in mixes.items()}

    # -- training and routing -----------------------------------------------------------------

    def train(self, tasks: Mapping[str, tuple[Task, ...]]) -> AgentSpec:
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

        work = jobs(tasks, self.settings)
        generation = self.generation

        def keep(job: Job) -> bool:
            fault = None if generation is None else generation.fault(job.tasks)
            if generation is not None and fault is not None:
                self.write_dropped(generation)
            return fault is None

        with ExitStack() as listening:
            if generation is not None:
                listening.enter_context(self.lab.listening(generation.hear))
            if self.settings.route == "turn":
                listening.enter_context(self.lab.listening(self.conversations.hear))
            done = train(
                self.lab, self.base, work, self.settings, self.agent, after, keep, self.reserve
            )
        if not done:
            return self.give_up(
                "no adapter that may be used was trained: the base agent is returned"
            )
        agent = self.agent(done)
        if self.reserve > self.later:
            rollouts = self.unspent()
            agent = GateTraining(self.lab, agent, self.tasks, rollouts, self.settings).run()
        unspent = self.unspent()
        why = {"reason": UNSPENT} if unspent else {}
        self.write(outcome={"trained": [t.job.name for t in done], "unspent": unspent, **why})
        return agent

    def agent(self, done: Sequence[Trained]) -> AgentSpec:
        """The agent with the adapters that are there, and a router that knows only them."""
        names = [t.job.name for t in done]
        skills = {c.name: c.description for c in self.analysis.candidates}
        known, own = self.analysis.known(names), start_of(self.base)
        otherwise = None if own is None else own.name
        learned = (self.openings, self.conversations)
        router = describe(self.lab, done, known, skills, learned, self.settings, otherwise)
        return assemble(self.base, done, router)

    # -- the record ---------------------------------------------------------------------------

    def give_up(self, why: str) -> AgentSpec:
        unspent = self.unspent()
        whole = self.budget + self.reserve - self.later
        self.lab.log(f"{why}; {unspent} of {whole} rollouts stay unspent")
        self.write(outcome={"trained": [], "unspent": unspent, "reason": why})
        return self.base

    def write(self, **parts: Any) -> None:
        self.report.update(parts)
        self.lab.write("capabilities.json", self.report)
