"""What plays episodes: environments and their suites, policies, and the routers that choose a
policy's adapters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trace_bench.core.types import AgentSpec, Message, Score, Step, Task, Tool, Turn


class Part:
    """What all kinds of parts share. The optional methods of a kind are its abilities, and a part
    has one because its class overrides the method."""

    def has(self, ability: Callable[..., Any]) -> bool:
        """Whether the part overrides this method of its kind: `suite.has(Suite.reference)`."""
        return overrides(type(self), ability)


def overrides(cls: type, ability: Callable[..., Any]) -> bool:
    """Whether a class overrides this method of its kind."""
    return getattr(cls, ability.__name__, ability) is not ability


class Env(Part):
    """Runs one episode of one task after the other. Synchronous, deterministic given the task, no
    torch. `step` takes the agent's assistant message. A bad tool call is answered with an error
    message to the agent; an exception raised here is the environment's failure, not the agent's."""

    @abstractmethod
    def reset(self, task: Task) -> Step: ...

    @abstractmethod
    def step(self, action: Message) -> Step: ...

    def score(self) -> Score:
        """The score of an episode that was cut off at a limit; 0 where it cannot be told."""
        return Score(0.0, False)

    def close(self) -> None:
        """Gives back what the environment holds. May be called twice."""

    def solution(self) -> Sequence[Message]:
        """The agent's messages that end the episode in success from its present state, whatever
        the agent has done so far, the final text among them where one is due; none where the
        program cannot. A tiny agent then learns to put mistakes right (`trace_bench.tiny make`), in
        this process: a sandbox does not pass it on."""
        raise NotImplementedError


@dataclass(frozen=True)
class Typical:
    """A typical episode: the agent's turns, prompt and completion tokens per turn, user turns.
    common: tokens with which every prompt begins; reply: tokens of a user's turn (assumed)."""

    turns: float
    prompt: int
    completion: int
    user: float
    common: int = 0
    reply: int = 60

    @property
    def final(self) -> int:
        """Tokens of the whole episode: prompts grow evenly from the common ones."""
        return 2 * self.prompt - self.common + self.completion


@dataclass(frozen=True)
class Lender:
    """The suite that a split's tasks are borrowed from. `env`, `variant`: the settings `env` and
    `env.suite` that choose it; `split`: the split's name there."""

    suite: Suite
    env: str
    variant: str | None
    split: str


class Suite(Part):
    """A named set of tasks in splits, and their environment. Every score is reported with `name`
    and `variant`. `task` returns a task of `tasks` by its id. A split `demo`, where there is one,
    is for demonstrations (`trace_bench.tiny make`) and shares no task with the others.

    What the class says before a suite is made. image: the container image for sandbox=docker.
    lists_tasks_here: it needs no extra packages, so its tasks can be listed in this process even
    when its episodes run in a sandbox. tag_keys: the keys of a task's data under which it lists, as
    words, what the task needs or is about; a report filters by them, nothing is computed from them.
    world_key: the key of a task's data that names which of several worlds it is of; each has
    figures of its own in the summary. general_demonstrations: the "module:function" that gives a
    conversation of no task, (messages, tools), by its number, for `method=sft`. typical: for the
    estimates of `dry_run=true`."""

    name: str  # "toolsandbox"
    variant: str  # "embedded"
    image: str | None = None
    lists_tasks_here: bool = False
    tag_keys: tuple[str, ...] = ()
    world_key: str = ""
    general_demonstrations: str = ""
    typical: Typical | None = None

    @abstractmethod
    def splits(self) -> Sequence[str]: ...

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]: ...

    @abstractmethod
    def task(self, task_id: str) -> Task: ...

    @abstractmethod
    def make(self) -> Env: ...

    def about(self) -> Mapping[str, Any]:
        """Facts that every table should report, such as its data's revision. JSON-safe."""
        return {}

    def asks_user(self) -> bool:
        """Whether episodes may wait for a model that plays the user or judges the conversation.
        Each episode is then stepped in its own thread."""
        return False

    def lender(self, split: str) -> Lender | None:
        """Whose tasks a split has, if they are run and scored as another suite's are there; a run
        that is evaluated on it can then stand in a table with the lender's. None: its own."""
        return None

    def close(self) -> None:
        """Gives back what is held outside this process, such as containers."""

    @property
    def unwrapped(self) -> Suite:
        """The suite itself; of a sandboxed one, the suite inside."""
        return self

    def reference(self, task: Task) -> Sequence[Message]:
        """The task's reference solution: the agent's messages, in order."""
        raise NotImplementedError

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]:
        """What each of the user's turns in a task asks for, by program: [turn][item], items as
        plain data in the form of `trace_bench.checklists.items`. The turns are those of the task's
        reference; a single one if the user's turns are not known in advance."""
        raise NotImplementedError

    def capabilities(self) -> Sequence[str]:
        """The capabilities for which the suite generates training tasks."""
        return ()

    def synthetic(self, capability: str, seed: int) -> Task:
        """A training task for one of the `capabilities`. `task.data["contrast"]` marks a task in
        which exercising the capability would be wrong."""
        raise NotImplementedError

    def in_context(self, capability: str, seed: int) -> Task:
        """The same in the form of the suite's own tasks, which need other capabilities too;
        exercising this one is rewarded most."""
        raise NotImplementedError

    def act(self, calls: Sequence[tuple[Env, Task | Message]]) -> Sequence[Step | Exception]:
        """Resets (given a task) or steps (given an action) many episodes at once. Returns one
        result per call, in order; for an episode that failed, the exception."""
        raise NotImplementedError


State = Sequence[float]
"""A hidden state of the base model [hidden size]."""

Prompt = tuple[Sequence[Message], Sequence[Tool]]
"""The first messages of an episode, and its tools."""


@dataclass(frozen=True)
class TurnRequest:
    """Asks for the next turn of a live episode. `messages` are only those that arrived since its
    last turn; the policy remembers the rest. The first request carries `tools` and the opening
    messages. `seed`: of the episode's own random stream, the same in every request. `adapter` may
    change between requests: the whole conversation is then read with the new one."""

    episode: int
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    adapter: str | None = None
    seed: int = 0
    temperature: float = 1.0
    max_tokens: int = 96


@dataclass(frozen=True)
class TurnReply:
    """`turn` is None if none could be generated: then either `context_full` is true (the prompt
    exceeds the model's context: a stop reason, not a failure) or `error` says what failed."""

    episode: int
    turn: Turn | None
    error: str | None = None
    context_full: bool = False


class Policy(Part):
    """Generates the agent's turns, asynchronously across episodes.

    `capacity`: how many live episodes it can use at once. `repeatable`: whether the same requests
    always give the same turns (a server's answers depend on its other load). What the class says:
    `scripted`: it has no weights, so nothing can be trained on its turns. `at_servers`: its turns
    come from the servers in its setting `base_url`. `addresses`: its settings with addresses of
    servers, the first of which must be given, and for each the one that names the environment
    variable with the key. `context`: the most tokens of an episode, of a policy that knows
    `first_prompt`."""

    capacity: int
    repeatable: bool
    scripted: bool = False
    at_servers: bool = False
    addresses: Mapping[str, str] = MappingProxyType({"base_url": "key_env"})
    context: int | None = None

    @abstractmethod
    def load(self, agent: AgentSpec) -> None: ...  # make the agent's adapters available by name

    @abstractmethod
    def submit(self, requests: Sequence[TurnRequest]) -> None: ...

    @abstractmethod
    def collect(self) -> list[TurnReply]: ...  # blocks until at least one is ready

    @abstractmethod
    def release(self, episode: int) -> None: ...  # forget an episode

    @abstractmethod
    def close(self) -> None: ...

    def bind(self, episode: int, task: Task) -> None:
        """Told of each episode's task before its first turn, as a scripted policy needs."""

    def wake(self) -> None:
        """Interrupts a blocked `collect`, if that is possible; callable from any thread."""

    def usage(self) -> Mapping[str, Any]:
        """Its counts of requests and tokens, JSON-safe, for `usage` in summary.json."""
        return {}

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int:
        """How many tokens an episode's first prompt has, where `context` is set; a run whose
        prompts cannot work is so refused at its start. Raises UserError if the tools do not reach
        the model."""
        return 0

    def try_turn(self, request: TurnRequest) -> str | None:
        """Asks servers for one turn before anything is run, so that a run whose servers cannot
        work is refused at its start. The turn is no rollout, and its episode is forgotten. Returns
        what was asked, as a line of text; raises UserError if no turn can be had."""
        return None

    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> Mapping[str, float] | None:
        """How the base model scores one-token answers: the natural logarithm of each label's
        probability; None if the server returns none."""
        raise NotImplementedError

    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]:
        """What the base model makes of prompts: the final hidden state at the last token of each,
        alone in its sequence. Nothing is sampled, so it is no rollout. Of a prompt that is longer
        than the context, its last tokens are read."""
        raise NotImplementedError


class Router(Part):
    """Chooses the adapter for an episode from its first messages: a name, None for the base model,
    or a weighted sum of adapters (`policies.routing.merge.Mixture`). `waits`: whether the choice
    waits for a model's answer."""

    waits: bool = False

    @abstractmethod
    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...
