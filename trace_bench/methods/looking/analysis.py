"""Analysis: run the training tasks, label what happened, find which capabilities are missing. The
labels come from the role `analyst`: a program (rules.py), or a language model (analyst.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, MethodPlan, Need, Phase, PlannedRun, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Purpose, Task, Tool
from trace_bench.methods.looking import analyst, capabilities
from trace_bench.methods.looking.capabilities import Analysed, Label, Labelled
from trace_bench.methods.looking.evidence import Heard, heard_of
from trace_bench.methods.looking.rules import label
from trace_bench.play.suites import needed

CALL = "analysis"  # the name of the analysis call
LABELS = Need(
    "env", Suite.reference, "docs/environments.md",
    "With llm.analyst.by=endpoint a model labels the episodes instead.",
)  # fmt: skip


def planned(
    settings: capabilities.AnalysisSettings, run: PlannedRun, episodes: int, phase: str = CALL
) -> MethodPlan:
    """The plan of an analysis of so many episodes."""
    least = settings.analysis_minimum if Purpose.ANALYSIS in run.charged else 0
    phases = (Phase(phase, episodes, least=least, setting="method.analysis_minimum"),)
    if analyst.ROLE not in run.models:
        return MethodPlan(phases=phases, needs=(LABELS,))
    asked = 1 + settings.runs * math.ceil(episodes / analyst.BATCH)
    return MethodPlan(phases=phases, questions={analyst.ROLE: asked})


class CapabilityReport:
    """capabilities.json: a file of the run's folder that is written part by part."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._parts = lab, dict[str, Any]()

    def __call__(self, **parts: Any) -> None:
        self._parts |= parts
        self._lab.write("capabilities.json", self._parts)


@dataclass
class Analysis:
    """`write` takes parts of the report (capabilities.json) by name."""

    lab: Lab
    settings: capabilities.AnalysisSettings
    write: Callable[..., None]
    episodes: list[Analysed] = field(default_factory=list)
    candidates: list[capabilities.Capability] = field(default_factory=list)
    runs: list[list[Labelled]] = field(default_factory=list)
    keep: int = 0  # runs that must select a capability

    def play(self, agent: AgentSpec, tasks: Sequence[Task], count: int) -> None:
        """Runs `count` episodes of the training tasks and labels what happened."""
        by_program = self.lab.prompt_limit(analyst.ROLE) is None
        chosen = self._tasks(tasks, count)
        temperature = self.settings.analysis_temperature
        played = self.lab.rollouts(
            CALL, agent, chosen, purpose=Purpose.ANALYSIS, temperature=temperature
        )
        self.episodes = [Analysed(task, t) for task, t in zip(chosen, played, strict=True)]
        if by_program:
            self._by_program()
        else:
            self._by_model()
        self._report()

    def _by_program(self) -> None:
        references = self._references()
        for episode in self.episodes:
            if episode.task.id in references and episode.scored:
                episode.labels = label(references[episode.task.id], episode.trajectory)
        rows = [Labelled(e.passed, e.labels) for e in self.episodes if e.labels is not None]
        self.candidates = [
            c
            for c in capabilities.VOCABULARY
            if any(r.labels[c.name] is not Label.NA for r in rows)
        ]
        self.runs = capabilities.resamples(rows, self.settings.runs, self.lab.seed)
        self.keep = self.settings.keep_runs

    def _references(self) -> dict[str, Heard]:
        """Without tasks at which the environment fails: their episodes get no labels."""
        heard: dict[str, Heard] = {}
        for task_id, task in {e.task.id: e.task for e in self.episodes}.items():
            try:
                heard[task_id] = heard_of(self.lab.suite, task)
            except UserError:
                raise
            except Exception as error:  # an environment may raise anything
                self.lab.log(f"{task_id} is not labelled, its reference cannot be run: {error}")
        return heard

    def _by_model(self) -> None:
        scored = [e for e in self.episodes if e.scored]
        if all(e.passed for e in scored):  # then there is nothing to ask about
            for episode in scored:
                episode.labels = {}
            self.keep, self.runs = self.settings.keep_runs, [[]] * self.settings.runs
            return
        seen = {f"T{n:03d}": episode for n, episode in enumerate(scored, start=1)}
        self.lab.log(f"the analyst reads {len(seen)} episodes")
        self.candidates = analyst.discover(self.lab, seen)
        names = ", ".join(c.name for c in self.candidates)
        self.lab.log(f"it proposes {names}, and labels them in {self.settings.runs} runs")
        runs = analyst.label(self.lab, seen, self.candidates, self.settings)
        self.keep = math.ceil(self.settings.keep_runs * len(runs) / self.settings.runs)
        self.runs = [
            [Labelled(e.passed, labels) for e, labels in zip(scored, run, strict=True)]
            for run in runs
        ]
        for n, episode in enumerate(scored):
            episode.labels = analyst.majority(runs, n)

    def _report(self) -> None:
        passed = sum(e.passed for e in self.episodes)
        lost = sum(e.labels is None and not e.passed for e in self.episodes)
        self.write(
            analysis={
                "rollouts": len(self.episodes),
                "tasks": len({e.task.id for e in self.episodes}),
                "passed": passed,
                "failed": len(self.episodes) - passed - lost,
                "lost": lost,
            },
            labels=[
                {
                    "call": CALL,
                    "index": i,
                    "task": e.task.id,
                    "passed": e.passed,
                    "labels": {name: label.value for name, label in e.labels.items()},
                }
                for i, e in enumerate(self.episodes)
                if e.labels is not None
            ],
        )

    def _tasks(self, tasks: Sequence[Task], count: int) -> list[Task]:
        """`count` tasks: all of them as often as they fit, then a seeded sample."""
        rounds, rest = divmod(count, len(needed(tasks)))
        rng = random.Random(stable_seed(self.lab.seed, "trace", CALL))
        extra = sorted(rng.sample(range(len(tasks)), rest))
        return [*list(tasks) * rounds, *(tasks[i] for i in extra)]

    def choose(self, trainable: Collection[str] | None) -> list[capabilities.Verdict]:
        """Verdicts on every candidate. `trainable`: those that environments can be made for, which
        only the report needs to know; None: for all that are no controls."""
        verdicts = capabilities.select(self.runs, self.candidates, self.settings, self.keep)
        self.write(
            thresholds={
                **{n: vars(self.settings)[n] for n in ("coverage", "gap", "minimum_support")},
                "runs": len(self.runs),
                "keep_runs": self.keep,
            },
            candidates=[
                {
                    **capabilities.as_json(v),
                    "trainable": not v.control if trainable is None else v.name in trainable,
                }
                for v in verdicts
            ],
        )
        self.lab.log(capabilities.table(verdicts, self.settings, self.keep, len(self.runs)))
        return verdicts

    def advice(self) -> list[str]:
        """A line for each selected capability, at most `max_capabilities`: its advice, or its
        description where a model named it."""
        chosen = [v.capability for v in self.choose(()) if v.selected and not v.control]
        return [c.advice or c.description for c in chosen[: self.settings.max_capabilities]]

    def tools(self) -> dict[str, Tool]:
        return {t["function"]["name"]: t for e in self.episodes for t in e.trajectory.tools}

    def lacking(self, name: str) -> list[Analysed]:
        failed = [e for e in self.episodes if not e.passed]
        return [e for e in failed if e.labels and e.labels[name] is Label.LACKING]
