"""The policy for verl's rollouts, over verl's servers, which take and return tokens."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from trace_bench.core.errors import TraceBenchError
from trace_bench.core.protocols import Policy, TurnReply, TurnRequest
from trace_bench.core.types import AgentSpec, Message, Tool, Turn
from trace_bench.policies.chat import Chat

Generate = Callable[..., Awaitable[Any]]
"""verl's `LLMServerClient.generate(request_id, prompt_ids=, sampling_params=)`."""


class ServersLost(TraceBenchError):
    """verl's servers are gone or hold the wrong weights. The whole iteration cannot be run; no
    single episode is at fault."""


@dataclass
class _Underway:
    """The state of an episode. `ids`: all tokens so far. `request`: the id that keeps its turns on
    one server."""

    tools: tuple[Tool, ...] = ()
    request: str = field(default_factory=lambda: uuid4().hex)
    ids: list[int] = field(default_factory=list)
    new: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    adapter: str | None = None
    limit: int = 0
    turns: int = 0
    finished: bool = True


@dataclass(frozen=True)
class TokenServers:
    """Access to verl's servers. `loop`: the event loop of the process, in which `generate` runs.
    `version`: maps the number of updates that a server reports to the adapter's name. `seeded`:
    whether servers sample from the episode's own random stream (this project's engine does)."""

    generate: Generate
    loop: asyncio.AbstractEventLoop
    version: Callable[[int], str | None]
    context: int
    deadline: float
    seeded: bool
    sampling: Mapping[str, Any]


class TokenPolicy(Policy):
    """Tokens are only appended: each prompt is the previous one plus
    the sampled tokens and the new messages."""

    repeatable = False

    def __init__(self, chat: Chat, servers: TokenServers, capacity: int) -> None:
        self.capacity = capacity
        self._chat, self._servers = chat, servers
        self._open: dict[int, _Underway] = {}
        self._done: queue.SimpleQueue[tuple[int, Future[Any] | TurnReply]] = queue.SimpleQueue()

    def load(self, agent: AgentSpec) -> None:
        """No effect: verl updates its servers itself; each turn reports its adapter version."""

    def submit(self, requests: Sequence[TurnRequest]) -> None:
        for request in requests:
            try:
                self._submit(request)
            except Exception as error:  # fails this episode only
                text = f"{type(error).__name__}: {error}"
                self._done.put((request.episode, TurnReply(request.episode, None, error=text)))

    def collect(self) -> list[TurnReply]:
        """Waits for at least one turn. Raises ServersLost."""
        ready = [self._done.get()]
        while not self._done.empty():
            ready.append(self._done.get())
        return [self._reply(n, what) for n, what in ready if n in self._open]

    def release(self, episode: int) -> None:
        self._open.pop(episode, None)

    def close(self) -> None:
        self._open.clear()

    def _submit(self, request: TurnRequest) -> None:
        number, servers = request.episode, self._servers
        episode = self._open.setdefault(number, _Underway(request.tools, adapter=request.adapter))
        if episode.turns:
            new = self._chat.following(request.messages, episode.finished)
        else:
            new = self._chat.first(request.messages, request.tools)
        start = len(episode.ids) + len(new)
        if start >= servers.context:
            self._done.put((number, TurnReply(number, None, context_full=True)))
            return
        episode.messages, episode.new = request.messages, new
        episode.limit = min(request.max_tokens, servers.context - start)
        episode.ids.extend(new)
        params = {**servers.sampling, "temperature": request.temperature, "logprobs": True}
        params["max_tokens"] = episode.limit
        if servers.seeded:
            params["seed"] = request.seed
        asked = servers.generate(
            episode.request, prompt_ids=list(episode.ids), sampling_params=params
        )
        future = asyncio.run_coroutine_threadsafe(
            asyncio.wait_for(asked, servers.deadline), servers.loop
        )
        future.add_done_callback(lambda done: self._done.put((number, done)))

    def _reply(self, number: int, what: Future[Any] | TurnReply) -> TurnReply:
        if isinstance(what, TurnReply):
            return what
        episode = self._open[number]
        if (error := what.exception()) is not None:
            return TurnReply(number, None, error=self._failed(error))
        output = what.result()
        if not output.token_ids:
            return TurnReply(number, None, error=f"no tokens ({output.stop_reason})")
        acted = self._servers.version(int(output.extra_fields["global_steps"]))
        if acted != episode.adapter:
            raise ServersLost(f"the servers hold {acted!r} where {episode.adapter!r} is to act")
        ids = tuple(output.token_ids)
        episode.ids.extend(ids)
        episode.finished = ids[-1] == self._chat.stop
        reply = self._chat.parse(ids, episode.turns, episode.tools)
        episode.turns += 1
        turn = Turn(
            messages=episode.messages,
            reply=reply.message,
            prompt_ids=episode.new,
            token_ids=ids,
            logprobs=tuple(output.log_probs or ()),
            adapter=acted,
            malformed=reply.malformed,
            thoughts=reply.thoughts,
            truncated=not episode.finished and len(ids) >= episode.limit,
        )
        return TurnReply(number, turn)

    def _failed(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return (
                f"no answer within {self._servers.deadline:g} s; a longer deadline is the setting "
                "`trainer.deadline`"
            )
        if isinstance(error, ValueError):  # Ray's too: a request that the server refuses
            return f"{type(error).__name__}: {error}"
        raise ServersLost(f"{type(error).__name__}: {error}") from error
