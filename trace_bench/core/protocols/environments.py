"""Environments: what runs, scores and describes the tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from trace_bench.core.types import (
    Message,
    Milestone,
    Score,
    Step,
    Task,
)


@runtime_checkable
class Env(Protocol):
    """Runs one episode of one task. Synchronous, deterministic given the task, no torch.

    `step` takes the agent's assistant message. A bad tool call is answered with an error message
    to the agent; an exception raised here is a failure of the environment, not of the agent.
    """

    def reset(self, task: Task) -> Step: ...
    def step(self, action: Message) -> Step: ...
    def close(self) -> None: ...


@runtime_checkable
class ScoresAlone(Protocol):
    """An environment that can score an episode that was cut off at the turn or context limit.
    Without this ability such an episode scores 0."""

    def score(self) -> Score: ...


@runtime_checkable
class Suite(Protocol):
    """A named set of tasks in splits, and their environment. Every score is reported with `name`
    and `variant`. `task` returns a task of `tasks` by its id."""

    name: str  # "toolsandbox"
    variant: str  # "embedded"

    def splits(self) -> Sequence[str]: ...
    def tasks(self, split: str) -> Sequence[Task]: ...
    def task(self, task_id: str) -> Task: ...
    def make(self) -> Env: ...


@runtime_checkable
class HasReference(Protocol):
    """A suite with a reference solution for each task: the agent's messages, in order."""

    def reference(self, task: Task) -> Sequence[Message]: ...


@runtime_checkable
class HasMilestones(Protocol):
    """A suite whose scores have milestones (`Score.milestones`). `milestones` gives those of a task
    (at least one) as an agent that does nothing leaves them; an episode that is cut off without a
    score of its own has met none. Without references, TRACE's program labels episodes by them."""

    def milestones(self, task: Task) -> Sequence[Milestone]: ...


@runtime_checkable
class HasChecklist(Protocol):
    """A suite that says by program what each of the user's turns in a task asks for: [turn][item],
    items as plain data in the form of `trace_bench.checklists.items`. The turns are those of the
    task's reference; a single one if the user's turns are not known in advance."""

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]: ...


@runtime_checkable
class Synthesizes(Protocol):
    """A suite that generates training tasks for a capability, one for each seed.
    `task.data["contrast"]` marks a task in which exercising the capability would be wrong."""

    def capabilities(self) -> Sequence[str]: ...
    def synthetic(self, capability: str, seed: int) -> Task: ...


@runtime_checkable
class SynthesizesDomains(Protocol):
    """A suite that also generates training tasks of other domains, with tools other than its own,
    one for each seed; its environments run them too. `domains` names them."""

    def domains(self) -> Sequence[str]: ...
    def synthetic_in(self, domain: str, seed: int) -> Task: ...


@runtime_checkable
class AsksUser(Protocol):
    """A suite whose episodes may wait for a model that plays the user or judges the
    conversation. If `asks_user()` is true, each episode is stepped in its own thread."""

    def asks_user(self) -> bool: ...


@runtime_checkable
class ActsTogether(Protocol):
    """A suite that resets (given a task) or steps (given an action) many episodes at once. Returns
    one result per call, in order; for an episode that failed, the exception."""

    def act(self, calls: Sequence[tuple[Env, Task | Message]]) -> Sequence[Step | Exception]: ...


@runtime_checkable
class Describes(Protocol):
    """A suite with facts that every table should report, such as the revision of its data or tasks
    that were left out. JSON-safe."""

    def about(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Lender:
    """The suite that a split's tasks are borrowed from. `env`, `variant`: the settings `env` and
    `env.suite` that choose it; `split`: the split's name there."""

    suite: Suite
    env: str
    variant: str | None
    split: str


@runtime_checkable
class Borrows(Protocol):
    """A suite with splits whose tasks are another suite's, run and scored as they are there.
    With it a run that is evaluated on such a split can stand in a table with runs of the lender.
    None for a split of its own."""

    def lender(self, split: str) -> Lender | None: ...


@runtime_checkable
class Closes(Protocol):
    """Holds resources outside this process, such as containers, until it is closed."""

    def close(self) -> None: ...


@runtime_checkable
class InImage(Protocol):
    """On a suite's class: the container image for sandbox=docker."""

    image: str


@runtime_checkable
class ListsTasksHere(Protocol):
    """On a suite's class: with `lists_tasks_here = True` the suite needs no extra packages, so its
    tasks can be listed in this process even when its episodes run in a sandbox."""

    lists_tasks_here: bool


@runtime_checkable
class LargerSplits(Protocol):
    """On a suite's class: maps a training split to one with more tasks of the same kind."""

    larger: Mapping[str, str]


@runtime_checkable
class Tagged(Protocol):
    """On a suite's class: the keys of a task's data under which it lists what the task needs or is
    about, as words. A report filters by them; nothing is computed from them."""

    tag_keys: tuple[str, ...]


@dataclass(frozen=True)
class Typical:
    """A typical episode: the agent's turns, prompt and completion tokens per turn, user turns."""

    turns: float
    prompt: int
    completion: int
    user: float


@runtime_checkable
class TypicalLengths(Protocol):
    """On a suite's class: typical episode lengths, for the estimates of `dry_run=true`."""

    typical: Typical
