"""τ²-bench's tasks in splits. Variant: the domain, or several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

from trace_bench.core.chat import call_message, text_message
from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import RunContext, Suite, Typical
from trace_bench.core.types import Message, Task
from trace_bench.envs import EitherEnv, task_named
from trace_bench.envs.tau2.data import load
from trace_bench.envs.tau2.env import Tau2Env
from trace_bench.envs.tau2.score import SCORING, gold_changes
from trace_bench.envs.tau2.user import PROMPT_VERSION
from trace_bench.envs.tau2.world import DomainTools

Domain = Literal["airline", "retail", "telecom"]


@dataclass(frozen=True)
class Tau2Settings:
    """`env.*` of `env=tau2`."""

    domain: Domain | tuple[Domain, ...]
    """airline, retail or telecom; [airline,retail]: both as one world, reported by domain too."""

    @property
    def domains(self) -> tuple[Domain, ...]:
        return self.domain if isinstance(self.domain, tuple) else (self.domain,)


class Tau2Suite(Suite):
    """A domain of the benchmark. The simulated user is the model behind `run.ask`, or a script if
    there is none. Raises UserError."""

    name = "tau2"
    image = "tau2"
    # Estimated from the lengths of the benchmark's policies and conversations.
    typical = Typical(14, 8000, 120, 7)

    def __init__(self, run: RunContext, settings: Tau2Settings) -> None:
        (self.variant,) = settings.domains
        self._user = "scripted" if run.ask is None else "llm"
        self._data, self._ask = load(self.variant), run.ask

    def asks_user(self) -> bool:
        return self._ask is not None

    @cached_property
    def _toolbox(self) -> DomainTools:
        return DomainTools(self._data)

    @cached_property
    def _gold(self) -> Callable[[str], str]:
        """How the task of a record's id should change its database."""
        return cache(lambda name: gold_changes(self._data.records[name], self._toolbox))

    def about(self) -> dict[str, Any]:
        return {
            "data": self._data.revision,
            "scoring": SCORING,
            "user": self._user,
            "user_prompt": PROMPT_VERSION,
        }

    def splits(self) -> Sequence[str]:
        """The benchmark's own splits, and its train split in two: `fit` for training, `dev` for
        tuning."""
        return [*self._data.splits, "fit", "dev"]

    def tasks(self, split: str) -> Sequence[Task]:
        if split in self._data.splits:
            ids = list(self._data.splits[split])
        elif split in ("fit", "dev"):
            train = list(self._data.splits["train"])
            ids = [t for n, t in enumerate(train) if (n % 3 == 2) == (split == "dev")]
        else:
            raise unknown(
                "split", split, self.splits(), "env.train_split, env.dev_split or evaluation.split"
            )
        return [self._task(split, n, name) for n, name in enumerate(ids)]

    def task(self, task_id: str) -> Task:
        return task_named(self, task_id)

    def make(self) -> Tau2Env:
        return Tau2Env(self._toolbox, self._gold, self._ask)

    def reference(self, task: Task) -> Sequence[Message]:
        """The task's own actions in order: the agent's as tool calls, a message to the user where
        the user must act; at the end a message with all information the user needs."""
        criteria = task.data["record"].get("evaluation_criteria") or {}
        out: list[Message] = []
        before = None
        for n, action in enumerate(criteria.get("actions") or ()):
            side = action.get("requestor", "assistant")
            if side == "assistant":
                out.append(call_message(action["name"], action["arguments"], f"gold_{n}"))
            elif before != "user":
                out.append(text_message("Please do what is needed on your side."))
            before = side
        told = " ".join(criteria.get("communicate_info") or ())
        return [*out, text_message(f"That is done. {told}".strip())]

    def _task(self, split: str, number: int, name: str) -> Task:
        data = {"record": self._data.records[name]}
        return Task(f"tau2/{self.variant}/{split}/{number:04d}", "tau2", split, number, data)


class Tau2Domains(Suite):
    """The domains that `env.domain` lists as one training world: their tasks one domain after the
    other, each episode in the domain of its task, adapters and analysis over all. Raises UserError
    as `Tau2Suite` does."""

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


def _marked(task: Task, domain: str) -> Task:
    return replace(task, data={**task.data, "domain": domain})
