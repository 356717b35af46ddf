"""Policies: what acts in episodes, and the routers that choose its adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from trace_bench.core.types import (
    AgentSpec,
    Message,
    Task,
    Tool,
    Turn,
)

State = Sequence[float]
"""A hidden state of the base model [hidden size]."""


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


@runtime_checkable
class Policy(Protocol):
    """Generates the agent's turns, asynchronously across episodes.

    `capacity`: how many live episodes it can use at once. `repeatable`: whether the same requests
    always give the same turns (a server's answers depend on its other load)."""

    capacity: int
    repeatable: bool

    def load(self, agent: AgentSpec) -> None: ...  # make the agent's adapters available by name
    def submit(self, requests: Sequence[TurnRequest]) -> None: ...
    def collect(self) -> list[TurnReply]: ...  # blocks until at least one is ready
    def release(self, episode: int) -> None: ...  # forget an episode
    def close(self) -> None: ...


@runtime_checkable
class Wakes(Protocol):
    """A policy whose blocked `collect` can be interrupted."""

    def wake(self) -> None: ...  # wakes a blocked `collect`; callable from any thread


@runtime_checkable
class ReadsPrompts(Protocol):
    """A policy that can say before anything is run how many tokens an episode's first prompt
    has; with it, a run whose prompts cannot work is refused at its start. `context`: the most
    tokens of an episode. `first_prompt` raises UserError if the tools do not reach the model."""

    context: int

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> int: ...


@runtime_checkable
class TriesTurns(Protocol):
    """A policy that can be asked for one turn before anything is run; with it, a run whose
    servers cannot work is refused at its start. The turn is no rollout, and its episode is
    forgotten. Returns what was asked, as a line of text; raises UserError if no turn can be had.
    """

    def try_turn(self, request: TurnRequest) -> str: ...


@runtime_checkable
class KnowsTask(Protocol):
    """A policy that is given each episode's task, as a scripted policy needs."""

    def bind(self, episode: int, task: Task) -> None: ...


@runtime_checkable
class CountsUsage(Protocol):
    """A policy that counts its requests and tokens. The counts, JSON-safe, are kept in summary.json
    under `usage`."""

    def usage(self) -> Mapping[str, Any]: ...


@runtime_checkable
class RanksLabels(Protocol):
    """A policy whose base model can score one-token answers: maps each label to the natural
    logarithm of its probability; None if the server returns no log-probabilities."""

    def label_logprobs(
        self, messages: Sequence[Message], labels: Sequence[str]
    ) -> Mapping[str, float] | None: ...


@runtime_checkable
class ShowsState(Protocol):
    """A policy that can show what its base model makes of a prompt: the final hidden state at its
    last token, alone in the sequence; with `blocks` the input of each transformer block, averaged
    over the prompt's tokens, in order. Nothing is sampled, so it is no rollout. Of a prompt that is
    longer than the context, its last tokens are read."""

    def prompt_states(
        self, messages: Sequence[Message], tools: Sequence[Tool], blocks: bool = False
    ) -> Sequence[State]: ...


@runtime_checkable
class PlaysSums(Protocol):
    """A policy that runs weighted sums of its loaded adapters as they are, without a file for
    each. A turn may name the sum (`TurnRequest.adapter`) until the next `load`, or longer where an
    episode uses it. `weights`: of the adapters' updates by name, one number for the model or one
    for each transformer block. The same name always has the same weights."""

    def add_sum(self, name: str, weights: Mapping[str, float | Sequence[float]]) -> None: ...


@runtime_checkable
class Scripted(Protocol):
    """On a policy's class: with `scripted = True` the policy has no weights, so nothing can be
    trained on its turns."""

    scripted: bool


@runtime_checkable
class AtServers(Protocol):
    """On a policy's class: with `at_servers = True` its turns come from the servers in its setting
    `base_url`; the setting `key_env` names the environment variable with the API key."""

    at_servers: bool


@runtime_checkable
class Router(Protocol):
    """Chooses the adapter for an episode from its first messages: a name, None for the base model,
    or a weighted sum of adapters (`policies.routing.merge.Mixture`). `waits`: whether the choice
    waits for a model's answer."""

    waits: bool

    def route(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...


@runtime_checkable
class RoutesTurns(Protocol):
    """A router that chooses anew before every turn of the agent, from the whole conversation so
    far."""

    def next(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Any: ...
