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
from trace_bench.core.types import AgentSpec
from trace_bench.policies.chat import Chat
from trace_bench.policies.talk import Talk, Thoughts, submitted

Generate = Callable[..., Awaitable[Any]]
"""verl's `LLMServerClient.generate(request_id, prompt_ids=, sampling_params=)`."""


def resolve(answer: asyncio.Future[Any], what: Any) -> None:
    """Passes a result, or an exception, to the event loop that waits for it."""

    def hand() -> None:
        if answer.done():
            return
        if isinstance(what, Exception):
            answer.set_exception(what)
        else:
            answer.set_result(what)

    answer.get_loop().call_soon_threadsafe(hand)


class ServersLost(TraceBenchError):
    """verl's servers are gone or hold the wrong weights, which is no single episode's fault."""


@dataclass
class _Underway:
    """The state of an episode. `request`: the id that keeps its turns on one server."""

    talk: Talk
    request: str = field(default_factory=lambda: uuid4().hex)
    limit: int = 0


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
    """Each prompt goes to the servers as tokens (`policies.talk`)."""

    repeatable = False

    def __init__(
        self, chat: Chat, servers: TokenServers, capacity: int, thoughts: Thoughts = "own"
    ) -> None:
        self.capacity = capacity
        self._chat, self._servers, self._thoughts = chat, servers, thoughts
        self._open: dict[int, _Underway] = {}
        self._done: queue.SimpleQueue[tuple[int, Future[Any] | TurnReply] | None] = (
            queue.SimpleQueue()
        )

    def load(self, agent: AgentSpec) -> None:
        """No effect: verl updates its servers itself; each turn reports its adapter version."""

    def submit(self, requests: Sequence[TurnRequest]) -> None:
        for request, failed in submitted(requests, self._submit):
            self._done.put((request.episode, failed))

    def collect(self) -> list[TurnReply]:
        """Waits for at least one turn or `wake`. Raises ServersLost."""
        ready = [self._done.get()]
        while not self._done.empty():
            ready.append(self._done.get())
        return [self._reply(*done) for done in ready if done is not None and done[0] in self._open]

    def wake(self) -> None:
        self._done.put(None)

    def release(self, episode: int) -> None:
        self._open.pop(episode, None)

    def close(self) -> None:
        self._open.clear()

    def _submit(self, request: TurnRequest) -> None:
        number, servers = request.episode, self._servers
        if number not in self._open:
            talk = Talk(self._chat, request.tools, self._thoughts, request.adapter)
            self._open[number] = _Underway(talk)
        episode = self._open[number]
        talk = episode.talk
        talk.ask(request.messages)
        if len(talk.ids) >= servers.context:
            self._done.put((number, TurnReply(number, None, context_full=True)))
            return
        episode.limit = min(request.max_tokens, servers.context - len(talk.ids))
        params = {**servers.sampling, "temperature": request.temperature, "logprobs": True}
        params["max_tokens"] = episode.limit
        if servers.seeded:
            params["seed"] = talk.seed(request.seed)
        asked = servers.generate(episode.request, prompt_ids=list(talk.ids), sampling_params=params)
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
        acted, talk = self._servers.version(int(output.extra_fields["global_steps"])), episode.talk
        if acted != talk.adapter:
            raise ServersLost(f"the servers hold {acted!r} where {talk.adapter!r} is to act")
        ids, logprobs = tuple(output.token_ids), tuple(output.log_probs or ())
        finished = ids[-1] == self._chat.stop
        cut = not finished and len(ids) >= episode.limit
        return TurnReply(number, talk.turn(ids, logprobs, finished=finished, truncated=cut))

    def _failed(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._servers.deadline:g} s"
        if isinstance(error, ValueError):  # Ray's too: a request that the server refuses
            return f"{type(error).__name__}: {error}"
        raise ServersLost(f"{type(error).__name__}: {error}") from error
