"""Every interface of the program on one screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trace_bench.core.types import AgentSpec, Message, Purpose, Step, Task, Tool, Trajectory, Turn

T = TypeVar("T")


class Env(Protocol):
    """Plays one episode of one task. Synchronous, deterministic given the task, no torch.

    `step` takes the agent's assistant message. Bad tool calls are answered with an error message
    to the agent; an exception from here is a failure of the environment, not of the agent.
    """

    def reset(self, task: Task) -> Step: ...
    def step(self, action: Message) -> Step: ...
    def close(self) -> None: ...


class Suite(Protocol):
    """A named set of tasks and the environment that plays them (`envs.registry.suite`)."""

    name: str  # "toolsandbox", shown with `variant` beside every score
    variant: str  # "embedded"

    def splits(self) -> Sequence[str]: ...
    def tasks(self, split: str) -> Sequence[Task]: ...
    def task(self, task_id: str) -> Task: ...
    def make(self) -> Env: ...
    def reference(self, task: Task) -> Sequence[Message]: ...


@dataclass(frozen=True)
class TurnRequest:
    """A policy's work order: the next turn of a live episode.

    `messages` are only those that arrived since the episode's last turn; the policy remembers the
    rest. `tools` and the first messages come with the first request. `seed` is the episode's own
    random stream, the same in every request of the episode.
    """

    episode: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    adapter: str | None = None
    seed: int = 0
    temperature: float = 1.0
    max_tokens: int = 96


@dataclass(frozen=True)
class TurnReply:
    """`turn` is None when the turn could not be made: `error` says why, and `context_full` that
    the reason is the model's context length (a stop reason, not a failure)."""

    episode: int
    turn: Turn | None
    error: str | None = None
    context_full: bool = False


class Policy(Protocol):
    """Turns conversations into next turns, without a barrier between episodes."""

    capacity: int  # how many live episodes it wants at once
    # A policy that would not give the same turns again says `repeatable = False`.

    def load(self, agent: AgentSpec) -> None: ...  # make the agent's adapters available by name
    def submit(self, requests: Sequence[TurnRequest]) -> None: ...
    def collect(self) -> list[TurnReply]: ...  # blocks until at least one is ready
    def release(self, episode: int) -> None: ...  # forget an episode
    def close(self) -> None: ...


class Router(Protocol):
    """Chooses an adapter's name (None: base model) once per episode, from its first messages, or
    a weighted sum of adapters (`policies.merge.Mixture`)."""

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...


@dataclass(frozen=True)
class TrainingJob:
    """One adapter to be trained with GRPO. `reward` names which number of the score is the
    reward ("similarity" or "success"). `whole` makes of an agent with the adapter so far the agent
    that the method would return if training ended here; the curve shows that one."""

    name: str  # adapter base name; the trainer appends the version
    agent: AgentSpec
    tasks: Sequence[Task]
    rollouts: int  # exactly the share of the budget that may be spent
    seed: int
    reward: str = "similarity"
    whole: Callable[[AgentSpec], AgentSpec] | None = None  # None: the agent as it is


Ended = Callable[[int, Trajectory], None]
"""Told of an episode as it ends: its index and what it was."""

By = Callable[[Sequence[int], Ended], None]
"""Plays the episodes of these indices elsewhere, and tells of each as it ends."""


@dataclass(frozen=True)
class Source:
    """A suite that is made of a program text (`Lab.foreign`)."""

    name: str
    text: str
    given: Mapping[str, Any]
    image: str


class Trainer(Protocol):
    def train(self, job: TrainingJob, lab: Lab) -> AgentSpec: ...


class Method(Protocol):
    """Base agent in, agent out, within `lab.budget_left()` rollouts."""

    name: str

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec: ...


class Lab(Protocol):
    """All that a method may touch. Every call has a name, unique in the run and the same when the
    run is repeated: a finished call is answered from the run folder."""

    folder: Path
    seed: int
    suite: Suite
    settings: Mapping[str, Any]  # the method's own settings, already validated
    trainer: Trainer

    def budget_left(self) -> int: ...
    def charges(self, purpose: Purpose) -> bool: ...  # whether the budget pays for it
    def rollouts(
        self,
        call: str,
        agent: AgentSpec,
        tasks: Sequence[Task],
        *,
        purpose: Purpose,
        temperature: float = 1.0,
        route: Sequence[str | None] | None = None,
        by: By | None = None,  # who plays; None: this process
    ) -> list[Trajectory]: ...  # one episode per entry of `tasks`, in order; repeat for groups
    def checkpoint(self, agent: AgentSpec) -> None: ...  # the agent as it stands, for the curve
    def metric(self, **values: Any) -> None: ...
    def say(self, text: str) -> None: ...
    def write(self, name: str, value: Any) -> None: ...  # JSON file in the run folder, atomic
    def write_text(self, name: str, text: str) -> None: ...  # the same for a text

    # Models in roles; `room` is None for a role that a program plays, and then nobody may be asked.
    def room(self, role: str) -> int | None: ...
    def ask(
        self, role: str, call: str, messages: Sequence[Message], read: Callable[[str], T]
    ) -> T: ...
    def retract(self, role: str, calls: str) -> None: ...  # these answers are not kept

    # A suite from a program text that a model wrote, in a box; its tasks can then be played.
    def foreign(
        self, name: str, source: str, given: Mapping[str, Any], image: str = "base"
    ) -> Suite: ...
    def forget(self, name: str) -> None: ...
    def suite_of(self, task: Task) -> Suite: ...
    def sources(self) -> Sequence[Source]: ...  # the texts whose suites are in use
