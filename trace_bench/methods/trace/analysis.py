"""Analysis: play the training tasks, label what happened, say which capabilities are missing.

Step 1 of the method; `prompt_only` stops after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from trace_bench.methods.trace import select
from trace_bench.methods.trace.case import view_of
from trace_bench.methods.trace.label import label
from trace_bench.methods.trace.route import Known
from trace_bench.methods.trace.select import Labelled, Verdict
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.methods.trace.vocabulary import VOCABULARY, Label
from trace_bench.protocols import Lab
from trace_bench.store import stable_seed
from trace_bench.types import AgentSpec, Purpose, Task, Trajectory

CALL = "analysis"  # the name of the analysis call


@dataclass(frozen=True)
class Episode:
    """One analysis rollout; `labels` is None when the infrastructure lost the episode."""

    task: Task
    passed: bool
    labels: dict[str, Label] | None


@dataclass
class Analysis:
    """`write` takes parts of the report (capabilities.json) by name."""

    lab: Lab
    settings: TraceSettings
    write: Callable[..., None]
    episodes: list[Episode] = field(default_factory=list)

    def play(self, agent: AgentSpec, tasks: Sequence[Task], count: int) -> None:
        """Plays `count` episodes of the training tasks and labels what happened."""
        plan = self._plan(tasks, count)
        temperature = self.settings.analysis_temperature
        played = self.lab.rollouts(
            CALL, agent, plan, purpose=Purpose.ANALYSIS, temperature=temperature
        )
        unique = {task.id: task for task in plan}
        views = {task_id: view_of(self.lab.suite, task) for task_id, task in unique.items()}
        self.episodes = [
            Episode(task, _passed(t), label(views[task.id], t) if _scored(t) else None)
            for task, t in zip(plan, played, strict=True)
        ]
        rows = self.rows()
        passed = sum(r.passed for r in rows)
        counts = {
            "rollouts": len(plan),
            "tasks": len(views),
            "passed": passed,
            "failed": len(rows) - passed,
            "lost": len(plan) - len(rows),
        }
        labelled = [(i, e, e.labels) for i, e in enumerate(self.episodes) if e.labels is not None]
        self.write(
            analysis=counts,
            labels=[
                {
                    "call": CALL,
                    "index": i,
                    "task": e.task.id,
                    "passed": e.passed,
                    "labels": {name: found.value for name, found in labels.items()},
                }
                for i, e, labels in labelled
            ],
        )

    def _plan(self, tasks: Sequence[Task], count: int) -> list[Task]:
        """`count` tasks: all of them as often as they fit, then a seeded sample."""
        rounds, rest = divmod(count, len(tasks))
        rng = random.Random(stable_seed(self.lab.seed, "trace", "analysis"))
        extra = sorted(rng.sample(range(len(tasks)), rest))
        return [*list(tasks) * rounds, *(tasks[i] for i in extra)]

    def rows(self) -> list[Labelled]:
        return [Labelled(e.passed, e.labels) for e in self.episodes if e.labels is not None]

    def choose(self, trainable: Collection[str]) -> list[Verdict]:
        """Verdicts on every capability whose situation came up at all. `trainable`: those that
        environments can be made for, which only the report needs to know."""
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
                    "trainable": v.name in trainable,
                    "examples": self._examples(v.name),
                }
                for v in verdicts
            ],
        )
        self.lab.say(select.table(verdicts, self.settings))
        return verdicts

    def _examples(self, name: str) -> list[str]:
        """Up to four task ids that show the capability, those that lack it first."""
        order = (Label.LACKING, Label.PRESENT)
        seen = [e.task.id for w in order for e in self.episodes if e.labels and e.labels[name] is w]
        return list(dict.fromkeys(seen))[:4]

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


def _scored(trajectory: Trajectory) -> bool:
    return trajectory.score is not None and trajectory.failure is None


def _passed(trajectory: Trajectory) -> bool:
    return trajectory.score is not None and trajectory.score.success
