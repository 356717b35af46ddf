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

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.methods.trace import budget as budgets
from trace_bench.methods.trace import calibrate, select
from trace_bench.methods.trace.case import view_of
from trace_bench.methods.trace.label import label
from trace_bench.methods.trace.route import Known, describe
from trace_bench.methods.trace.select import Labelled, Verdict
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.methods.trace.synthesize import generator
from trace_bench.methods.trace.train import Job, Trained, assemble, jobs, train
from trace_bench.methods.trace.vocabulary import VOCABULARY, Label
from trace_bench.protocols import Lab
from trace_bench.store import stable_seed
from trace_bench.types import AgentSpec, Purpose, Task, Trajectory

ANALYSIS = "analysis"  # the name of the analysis call


@dataclass(frozen=True)
class Episode:
    """One analysis rollout; `labels` is None when the infrastructure lost the episode."""

    task: Task
    passed: bool
    labels: dict[str, Label] | None


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
        budgets.check_budget(self.budget, self.settings, len(tasks))
        self.trainable = generator(lab.suite).capabilities()
        self.episodes: list[Episode] = []
        self.report: dict[str, Any] = {}

    def fit(self) -> AgentSpec:
        self.analyse()
        verdicts = self.choose()
        chosen = self.afford(verdicts)
        if not chosen:
            return self.give_up("no capability above the thresholds: the base agent is returned")
        mixes = self.calibrate([v.name for v in chosen])
        if not mixes:
            return self.give_up("the base agent already has what was selected: it is returned")
        coverage = {v.name: v.mean("coverage") for v in chosen}
        return self.train(jobs(self.lab, mixes, coverage, self.settings))

    # -- analysis and selection ---------------------------------------------------------------

    def analyse(self) -> None:
        """Plays the training tasks and labels what happened."""
        plan = self.plan(budgets.analysis_rollouts(self.budget, self.settings, len(self.tasks)))
        temperature = self.settings.analysis_temperature
        played = self.lab.rollouts(
            ANALYSIS, self.base, plan, purpose=Purpose.ANALYSIS, temperature=temperature
        )
        unique = {task.id: task for task in plan}
        views = {task_id: view_of(self.lab.suite, task) for task_id, task in unique.items()}
        self.episodes = [
            Episode(task, _passed(t), label(views[task.id], t) if _scored(t) else None)
            for task, t in zip(plan, played, strict=True)
        ]
        rows = self.rows()
        passed = sum(r.passed for r in rows)
        self.write(
            analysis={
                "rollouts": len(plan),
                "tasks": len(views),
                "passed": passed,
                "failed": len(rows) - passed,
                "lost": len(plan) - len(rows),
            },
            labels=[
                {
                    "call": ANALYSIS,
                    "index": i,
                    "task": e.task.id,
                    "passed": e.passed,
                    "labels": {k: v.value for k, v in e.labels.items()},
                }
                for i, e in enumerate(self.episodes)
                if e.labels is not None
            ],
        )

    def plan(self, count: int) -> list[Task]:
        """`count` tasks: all of them as often as they fit, then a seeded sample."""
        rounds, rest = divmod(count, len(self.tasks))
        rng = random.Random(stable_seed(self.lab.seed, "trace", "analysis"))
        extra = sorted(rng.sample(range(len(self.tasks)), rest))
        return [*list(self.tasks) * rounds, *(self.tasks[i] for i in extra)]

    def rows(self) -> list[Labelled]:
        return [Labelled(e.passed, e.labels) for e in self.episodes if e.labels is not None]

    def choose(self) -> list[Verdict]:
        """Verdicts on every capability whose situation came up at all."""
        rows = self.rows()
        candidates = [
            c.name for c in VOCABULARY if any(r.labels[c.name] is not Label.NA for r in rows)
        ]
        verdicts = select.select(rows, candidates, self.settings, self.lab.seed)
        self.write(
            thresholds={
                name: getattr(self.settings, name)
                for name in ("coverage", "gap", "minimum_support", "runs", "keep_runs")
            },
            candidates=[
                {
                    **select.as_json(v),
                    "trainable": v.name in self.trainable,
                    "examples": self.examples(v.name),
                }
                for v in verdicts
            ],
        )
        self.lab.say(select.table(verdicts, self.settings))
        return verdicts

    def examples(self, name: str) -> list[str]:
        """Up to four task ids that show the capability, those that lack it first."""
        order = (Label.LACKING, Label.PRESENT)
        seen = [e.task.id for w in order for e in self.episodes if e.labels and e.labels[name] is w]
        return list(dict.fromkeys(seen))[:4]

    def afford(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """The selected capabilities that can be trained and that the budget pays for."""
        selected = [v for v in verdicts if v.selected]
        for v in selected:
            if v.name not in self.trainable:
                kind = "a control" if v.control else "without a generator"
                self.lab.say(f"{v.name} is selected but not trained: it is {kind}")
        able = [v for v in selected if v.name in self.trainable]
        most = budgets.affordable(self.lab.budget_left(), self.settings)
        for v in able[most:]:
            self.lab.say(f"{v.name} is selected but not trained: the budget pays for {most}")
        return able[:most]

    # -- calibration and training -------------------------------------------------------------

    def calibrate(self, names: Sequence[str]) -> dict[str, Any]:
        """How to draw the tasks of every capability that is worth training."""
        left = self.lab.budget_left()
        pool = budgets.calibration_pool(self.budget, left, len(names), self.settings)
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
        self.write(outcome={"trained": [t.job.name for t in done], "unspent": unspent})
        return self.agent(done)

    def agent(self, done: Sequence[Trained]) -> AgentSpec:
        """The agent with the adapters that are there, and a router that knows only them."""
        names = [t.job.name for t in done]
        router = describe(self.lab.suite, done, self.known(names), self.settings)
        return assemble(self.base, done, router)

    def known(self, names: Sequence[str]) -> list[Known]:
        """What the analysis says about every training task: solved in most of its rollouts, or
        which of the capabilities `names` its failures lacked, the first in that order."""
        by_task: dict[str, list[Episode]] = {}
        for e in self.episodes:
            if e.labels is not None:
                by_task.setdefault(e.task.id, []).append(e)
        out: list[Known] = []
        for group in by_task.values():
            solved = 2 * sum(e.passed for e in group) > len(group)
            failed = [e.labels for e in group if not e.passed and e.labels]
            lacking = (n for n in names if any(found.get(n) is Label.LACKING for found in failed))
            out.append(Known(group[0].task, solved, next(lacking, None)))
        return out

    # -- the record ---------------------------------------------------------------------------

    def give_up(self, why: str) -> AgentSpec:
        unspent = self.lab.budget_left()
        self.lab.say(f"{why}; {unspent} of {self.budget} rollouts stay unspent")
        self.write(outcome={"trained": [], "unspent": unspent, "reason": why})
        return self.base

    def write(self, **parts: Any) -> None:
        self.report.update(parts)
        self.lab.write("capabilities.json", self.report)


def _scored(trajectory: Trajectory) -> bool:
    return trajectory.score is not None and trajectory.failure is None


def _passed(trajectory: Trajectory) -> bool:
    return trajectory.score is not None and trajectory.score.success
