"""Several of τ²-bench's domains as one training world: their tasks one domain after the other, each
episode in the domain of its task, adapters and analysis over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import HasChecklist, HasReference, RunContext
from trace_bench.core.types import Message, Task
from trace_bench.envs import EitherEnv
from trace_bench.envs.tau2.suite import Tau2Settings, Tau2Suite


class Tau2Domains(HasReference, HasChecklist):
    """The domains that `env.domain` lists. Raises UserError as `Tau2Suite` does."""

    name = "tau2"
    image = Tau2Suite.image
    typical = Tau2Suite.typical
    world_key = "domain"

    def __init__(self, run: RunContext, settings: Tau2Settings) -> None:
        self._suites: dict[str, Tau2Suite] = {
            domain: Tau2Suite(run, replace(settings, domain=domain)) for domain in settings.domains
        }
        self.variant = "+".join(self._suites)

    def about(self) -> dict[str, Any]:
        """The facts of each domain; those that all share, once."""
        facts = {domain: suite.about() for domain, suite in self._suites.items()}
        first = next(iter(facts.values()))
        return {
            key: value
            if all(one[key] == value for one in facts.values())
            else "; ".join(f"{domain}: {one[key]}" for domain, one in facts.items())
            for key, value in first.items()
        }

    def asks_user(self) -> bool:
        return any(suite.asks_user() for suite in self._suites.values())

    def splits(self) -> Sequence[str]:
        """Those that every domain has."""
        first, *others = (suite.splits() for suite in self._suites.values())
        return [split for split in first if all(split in other for other in others)]

    def tasks(self, split: str) -> Sequence[Task]:
        return [
            _marked(task, domain)
            for domain, suite in self._suites.items()
            for task in suite.tasks(split)
        ]

    def task(self, task_id: str) -> Task:
        for domain, suite in self._suites.items():
            if task_id.startswith(f"{self.name}/{domain}/"):
                return _marked(suite.task(task_id), domain)
        raise UserError(f"no task {task_id!r} in {self.name}/{self.variant}.")

    def make(self) -> EitherEnv:
        return EitherEnv(lambda task: self._suites[task.data["domain"]].make())

    def reference(self, task: Task) -> Sequence[Message]:
        return self._suites[task.data["domain"]].reference(task)

    def checklist(self, task: Task) -> list[list[dict[str, Any]]]:
        return self._suites[task.data["domain"]].checklist(task)


def _marked(task: Task, domain: str) -> Task:
    return replace(task, data={**task.data, "domain": domain})
