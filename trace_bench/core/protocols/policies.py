"""Policies: what acts in episodes, and the routers that choose its adapters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.types import (
    AgentSpec,
    Message,
    Task,
    Tool,
    Turn,
)

State = Sequence[float]
"""A hidden state of the base model [hidden size]."""

Prompt = tuple[Sequence[Message], Sequence[Tool]]
"""The first messages of an episode, and its tools."""


@dataclass(frozen=True)
class TurnRequest:
    """Asks for the next turn of a live episode.

    `messages` are only those that arrived since the episode's last turn; the policy remembers the
    rest. The first request carries `tools` and the opening messages. `seed` is the seed of the
    episode's own random stream, the same in every request of the episode. `adapter` may change
    between requests: the whole conversation is then read with the new one, as if it had acted in
    all of it.
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
    """The answer to a TurnRequest. `turn` is None if no turn could be generated: then either
    `context_full` is true (the prompt exceeds the model's context: a stop reason, not a failure)
    or `error` says what failed."""

    episode: int
    turn: Turn | None
    error: str | None = None
    context_full: bool = False


class Policy:
    """Generates the agent's turns, asynchronously across episodes.

    `capacity`: how many live episodes it can use at once. `repeatable`: whether the same requests
    always give the same turns (a server's answers depend on its other load). What the class says:
    `scripted`: it has no weights, so nothing can be trained on its turns. `at_servers`: its turns
    come from the servers in its setting `base_url`; the setting `key_env` names the environment
    variable with the API key. `context`: the most tokens of an episode, of a policy that knows
    `first_prompt`."""

    capacity: int
    repeatable: bool
    scripted: bool = False
    at_servers: bool = False
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


class RanksLabels(Policy):
    """A policy whose base model can score one-token answers: maps each label to the natural
    logarithm of its probability; None if the server returns no log-probabilities."""

    @abstractmethod
    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> Mapping[str, float] | None: ...


class ShowsState(Policy):
    """A policy that can show what its base model makes of prompts: the final hidden state at the
    last token of each, alone in its sequence. Nothing is sampled, so it is no rollout. Of a prompt
    that is longer than the context, its last tokens are read."""

    @abstractmethod
    def prompt_states(self, prompts: Sequence[Prompt]) -> list[State]: ...


class Router:
    """Chooses the adapter for an episode from its first messages: a name, None for the base model,
    or a weighted sum of adapters (`policies.routing.merge.Mixture`). `waits`: whether the choice
    waits for a model's answer."""

    waits: bool = False

    @abstractmethod
    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...

    def routes(self, prompts: Sequence[Prompt]) -> list[Any]:
        """The choices for several prompts."""
        return [self.route(messages, tools) for messages, tools in prompts]


class RoutesTurns(Router):
    """A router that chooses anew before every turn of the agent, from the whole conversation so
    far."""

    @abstractmethod
    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...
