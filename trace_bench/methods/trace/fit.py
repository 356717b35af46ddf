"""One fit of TRACE: the steps in order, and step 5: one adapter per capability, or one for all. The
maths is the trainer's. What one job leaves unspent (a group that does not fit any more, early
stopping) goes to those after it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, MethodPlan, PlannedRun, Suite, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Task
from trace_bench.methods.looking.analysis import Analysis, CapabilityReport
from trace_bench.methods.looking.capabilities import Verdict
from trace_bench.methods.making import interleave
from trace_bench.methods.trace.gates import GateTraining
from trace_bench.methods.trace.routing import RouterData
from trace_bench.methods.trace.settings import JOINT, Budget

UNSPENT = "the last adapter ended early, or the rest was too little for another iteration"
Made = Mapping[str, tuple[Task, ...]]
"""The training tasks of each capability, in training order."""
Drawn = dict[Any, tuple[Suite, tuple[Task, ...]]]
"""Tasks that were drawn from a suite, by what was asked for."""


@dataclass(frozen=True)
class Trained:
    """What was trained into one adapter: `name` is its capability, or "joint"."""

    name: str
    tasks: tuple[Task, ...]
    adapter: AdapterRef
    share: int
    spent: int

    def side(self, contrast: bool) -> list[Task]:
        """Its tasks that are contrast cases, or those that are none."""
        return [t for t in self.tasks if bool(t.data.get("contrast", False)) == contrast]

    def as_json(self) -> dict[str, object]:
        made = {"name": self.name, "adapter": self.adapter.name, "tasks": len(self.tasks)}
        return {**made, "share": self.share, "spent": self.spent}


class Fit(ABC):
    """What is left open is where the tasks come from (tasks.py). `looks`: how the analysis is
    called in the plan; `nothing`: why the base agent is returned when there are no tasks; `drawn`:
    keeps tasks for another fit."""

    looks: ClassVar[str] = "analysis"
    nothing: ClassVar[str]

    def __init__(
        self,
        base: AgentSpec,
        tasks: Sequence[Task],
        lab: Lab,
        budget: Budget,
        drawn: Drawn,
    ) -> None:
        self.base, self.tasks, self.lab, self.budget = base, tasks, lab, budget
        self.settings, self.drawn = budget.settings, drawn
        self.write = CapabilityReport(lab)
        self.analysis = Analysis(lab, self.settings, self.write)
        self.seen = RouterData(lab, base, self.analysis)
        self.trainable = self.can_make()  # refused now, before anything is run

    # -- where the tasks come from ------------------------------------------------------------

    @classmethod
    @abstractmethod
    def planned(cls, run: PlannedRun, budget: Budget, left: int) -> MethodPlan:
        """With `left` rollouts. UserError for settings and roles that do not fit together."""

    def can_make(self) -> Collection[str] | None:
        """The capabilities that tasks can be made for; None: all that are no controls."""
        return None

    @abstractmethod
    def make(self, chosen: Sequence[Verdict]) -> Made:
        """The tasks of those of the chosen capabilities that there are tasks for."""

    def listening(self) -> AbstractContextManager[None]:
        """While adapters are trained on these tasks."""
        return nullcontext()

    def keeps(self, tasks: Sequence[Task]) -> bool:
        """Whether what was trained on these tasks may be used."""
        return True

    # -- the steps ----------------------------------------------------------------------------

    def run(self) -> AgentSpec:
        self.analysis.play(self.base, self.tasks, self.budget.looking(len(self.tasks)))  # 1 look
        chosen = self.afford(self.analysis.choose(self.trainable))  # 2 choose, 3 share the budget
        if not chosen:
            return self.give_up("no capability above the thresholds: the base agent is returned")
        made = self.make(chosen)  # 4 make tasks
        if not made:
            return self.give_up(self.nothing)
        done = self.train(made)  # 5 train
        if not done:
            return self.give_up(
                "no adapter that may be used was trained: the base agent is returned"
            )
        agent = self.routed(done)  # 6 route
        if self.budget.gate:
            agent = GateTraining(self.lab, agent, self.tasks, self.budget).run()  # 7 the gate
        unspent = self.budget.unspent(self.lab)
        why = {"reason": UNSPENT} if unspent else {}
        self.write(outcome={"trained": [t.name for t in done], "unspent": unspent, **why})
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

    def train(self, made: Made) -> list[Trained]:
        """An adapter for each capability, all from the base agent. One that trained nothing is left
        out, and one that may not be used is thrown away."""
        if self.settings.joint:
            made = {JOINT: interleave(list(made.values()))}
        done: list[Trained] = []
        with self.listening(), self.settings.route.listening(self.seen):
            for n, (name, tasks) in enumerate(made.items()):
                share = self.budget.left(self.lab) // (len(made) - n)
                new = self.train_one(name, tasks, share, lambda t: self.routed([*done, t]))
                if new is not None and self.keeps(tasks):
                    done.append(new)
                elif new is not None:
                    self.lab.checkpoint(self.routed(done) if done else self.base)
                self.write(training=[t.as_json() for t in done])
        return done

    def train_one(
        self, name: str, tasks: tuple[Task, ...], share: int, whole: Callable[[Trained], AgentSpec]
    ) -> Trained | None:
        """`whole`: the agent that would be returned if training ended now."""
        before = self.lab.budget_left()

        def trained(agent: AgentSpec) -> Trained:
            new = [a for a in agent.adapters if a not in self.base.adapters]
            if len(new) != 1:
                raise UserError(
                    f"the trainer returned {len(new)} new adapters for {name!r}; one is expected. "
                    "Change `trainer`."
                )
            adapter = replace(new[0], capability=name)
            return Trained(name, tasks, adapter, share, before - self.lab.budget_left())

        def acting(agent: AgentSpec) -> AgentSpec:
            return whole(trained(agent))

        seed = stable_seed(self.lab.seed, "trace", "train", name)
        job = TrainingJob(name, self.base, tasks, share, seed, self.settings.reward, whole=acting)
        agent = self.lab.trainer.train(job, self.lab)
        return None if agent == self.base else trained(agent)

    def routed(self, done: Sequence[Trained]) -> AgentSpec:
        """The base agent with the adapters that are there, and a router that knows only them; its
        version names what is in it. Without a router, the one new adapter takes the place of the
        base agent's own, from which it was trained on."""
        joint = self.settings.joint
        names = "\n".join(t.adapter.name for t in done)
        return replace(
            self.base,
            version=f"trace-{len(done)}-{hashlib.sha256(names.encode()).hexdigest()[:8]}",
            adapters=(*(() if joint else self.base.adapters), *(t.adapter for t in done)),
            router=None if joint else self.settings.route.router(done, self.seen),
        )

    def give_up(self, why: str) -> AgentSpec:
        unspent = self.budget.unspent(self.lab)
        self.lab.log(f"{why}; {unspent} of {self.budget.total} rollouts stay unspent")
        self.write(outcome={"trained": [], "unspent": unspent, "reason": why})
        return self.base
