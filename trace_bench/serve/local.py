"""Answers by this process's own engine: one thread runs it over the requests of all clients, which
join and leave the batch between two steps. What a request needs before is prepared beside it.

A conversation keeps its place in the engine after an answer, as long as no other needs that place:
the request that goes on with it then only adds to its prompt.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Message, Turn
from trace_bench.play.steps import with_guidance
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.merge import MergedSums
from trace_bench.policies.routing.router import make_router
from trace_bench.serve.request import (
    ChatRequest,
    Completion,
    Model,
    Refused,
    choose,
    key_after,
    key_before,
    new_messages,
)

Event = str | Completion | Refused
"""What a client gets: all of the text so far, the whole answer, or the reason why there is none."""


class Local:
    """`app.Answerer`: the engine of this process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def answer(
        self, ask: ChatRequest, model: Model
    ) -> AsyncGenerator[str | Completion, None]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        reading = asyncio.ensure_future(asyncio.to_thread(self._unread, ask, model))
        try:
            unread = await asyncio.shield(reading)
        except asyncio.CancelledError:
            await asyncio.wait([reading])  # for a client that has gone: it still holds a place
            raise
        ticket = Ticket(ask, model, unread, deliver)
        self._engine.start(ticket)
        said = 0
        try:
            while True:
                event = await events.get()
                if isinstance(event, Refused):
                    raise event
                text = event if isinstance(event, str) else event.message["content"]
                if ask.stream and len(text) > said:
                    yield text[said:]
                    said = len(text)
                if isinstance(event, Completion):
                    yield event
                    return
        finally:
            self._engine.cancel(ticket)

    def health(self) -> dict[str, Any]:
        return {"status": "broken" if self._engine.broken else "ok", **self._engine.load}

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)

    def _unread(self, ask: ChatRequest, model: Model) -> Refused | None:
        """Why the conversation cannot be read from its beginning, if it cannot; what is read stays
        in the chat's cache, for the engine."""
        policy = self._engine.policy
        try:
            tokens = len(policy.chat.first(self._engine.guided(ask, model), ask.tools))
        except Exception as error:  # templates may raise any exception
            text = f"the model cannot read this conversation: {error.__cause__ or error}"
            return Refused(400, text, param="messages")
        return _full() if tokens >= policy.context else None


@dataclass(eq=False)
class Ticket:
    """A request. `deliver` is called in the engine's thread, the last time with an answer or a
    refusal; where the answer is streamed, before that with the growing text. `unread`: why its
    conversation cannot be read from the beginning, if it cannot."""

    ask: ChatRequest
    model: Model
    unread: Refused | None
    deliver: Callable[[Event], None]
    episode: int = -1
    adapter: str | None = None


class LocalEngine:
    """`broken`: the engine has failed and answers nothing any more. `most`: the tokens of an answer
    whose request names no number; `sums`: where sums of adapters are written (see `merge`)."""

    def __init__(
        self, policy: LocalPolicy, agent: AgentSpec, most: int, sums: Path | None = None
    ) -> None:
        policy.load(agent)
        self.broken = False
        self.policy, self._agent, self._most = policy, agent, most
        self._router = make_router(agent, policy)
        self._sums = MergedSums(policy, agent, sums)
        self._asked: queue.SimpleQueue[tuple[Callable[[Ticket], None], Ticket] | None]
        self._asked = queue.SimpleQueue()
        self._waiting: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._idle: OrderedDict[str, tuple[int, str | None]] = OrderedDict()  # the oldest first
        self._tokens: dict[int, int] = {}  # of each open episode
        self._number = 0
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @property
    def load(self) -> dict[str, int]:
        """Requests that wait and that are answered, and conversations that are kept."""
        waiting, running, kept = map(len, (self._waiting, self._running, self._idle))
        return {"waiting": waiting, "running": running, "kept": kept}

    def start(self, ticket: Ticket) -> None:
        """Queues a request; callable from any thread."""
        self._asked.put((self._waiting.append, ticket))

    def cancel(self, ticket: Ticket) -> None:
        """Frees the place of a request whose client has gone; callable from any thread."""
        self._asked.put((self._drop, ticket))

    def close(self) -> None:
        """Ends the thread after its current step."""
        self._asked.put(None)
        self._thread.join()

    # -- the engine's thread ----------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._take():
                self._admit()
                if self._running:
                    for reply in self.policy.step():
                        self._finish(reply)
                    self._tell()
        except Exception:
            traceback.print_exc()
            self.broken = True
            self._refuse(Refused(500, "the engine has failed; see the server's log"))
            again = Refused(503, "the engine has failed; start the server again")
            while self._take():
                self._refuse(again)
            self._refuse(again)  # what was asked just before the end

    def _take(self) -> bool:
        """Takes what was asked, and waits if there is nothing to do; False once it is closed."""
        idle = not self._running and not self._waiting
        while idle or not self._asked.empty():
            if (asked := self._asked.get()) is None:
                return False
            what, ticket = asked
            what(ticket)
            idle = False
        return True

    def _refuse(self, why: Refused) -> None:
        """Refuses all that was asked."""
        for ticket in (*self._waiting, *self._running.values()):
            ticket.deliver(why)
        self._waiting.clear()
        self._running.clear()

    def _drop(self, ticket: Ticket) -> None:
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        elif self._running.get(ticket.episode) is ticket:
            del self._running[ticket.episode]
            self._release(ticket.episode)

    def _release(self, episode: int) -> None:
        self.policy.release(episode)
        self._tokens.pop(episode, None)

    def _admit(self) -> None:
        while self._waiting:
            ticket = self._waiting[0]
            key = key_before(ticket.ask)
            kept = self._idle.pop(key, None) if key is not None else None
            if kept is None and not self._place():
                return
            self._waiting.popleft()
            try:
                self._begin(ticket, kept)
            except Exception as error:
                if kept is not None:
                    self._release(kept[0])
                ticket.deliver(_refusal(error))

    def _place(self) -> bool:
        """Whether there is a place for another conversation; the longest idle one makes way."""
        if len(self._running) + len(self._idle) < self.policy.capacity:
            return True
        if not self._idle:
            return False
        _, (episode, _) = self._idle.popitem(last=False)
        self._release(episode)
        return True

    def _begin(self, ticket: Ticket, kept: tuple[int, str | None] | None) -> None:
        ask = ticket.ask
        if kept is None:
            if ticket.unread is not None:
                raise ticket.unread
            messages = self.guided(ask, ticket.model)
            self._number += 1
            ticket.episode, ticket.adapter = self._number, self._adapter(ask, ticket.model)
        else:
            messages = new_messages(ask)
            ticket.episode, ticket.adapter = kept
        seed = ask.seed if ask.seed is not None else stable_seed("serve", ticket.episode)
        how = (ticket.adapter, seed % 2**63, ask.temperature, ask.most or self._most)
        self.policy.submit([TurnRequest(ticket.episode, messages, ask.tools, *how)])
        self._running[ticket.episode] = ticket

    def guided(self, ask: ChatRequest, model: Model) -> tuple[Message, ...]:
        """The whole conversation, with the agent's prompt where the model has it."""
        return with_guidance(ask.messages, self._agent.prompt if model.prompted else "")

    def _adapter(self, ask: ChatRequest, model: Model) -> str | None:
        if not model.routed:
            return model.adapter
        return self._sums.name_of(choose(self._router, ask, self._agent.prompt))

    def _tell(self) -> None:
        """Streams the texts that grow, and ends those in which a stop has come up."""
        for episode, ticket in [*self._running.items()]:
            stops = ticket.ask.stops
            if not (ticket.ask.stream or stops):
                continue
            text = self.policy.partial(episode)
            if _before(text, stops) != text:
                self._finish(self.policy.cut(episode), keep=False)
            elif ticket.ask.stream:
                # What no stop can still take back.
                ticket.deliver(text[: len(text) + 1 - max(map(len, stops), default=1)])

    def _finish(self, reply: TurnReply, keep: bool = True) -> None:
        """`keep`: the conversation may go on from the tokens of this answer."""
        ticket, turn = self._running.pop(reply.episode), reply.turn
        if turn is None:
            self._release(reply.episode)
            ticket.deliver(_failure(reply))
            return
        prompt = self._tokens.get(reply.episode, 0) if turn.kept is None else turn.kept
        prompt += len(turn.prompt_ids)
        if keep:
            self._tokens[reply.episode] = prompt + len(turn.token_ids)
            key = key_after(ticket.ask, turn.reply)
            if (old := self._idle.pop(key, None)) is not None:
                self._release(old[0])
            self._idle[key] = (reply.episode, ticket.adapter)
        else:
            self._release(reply.episode)
        ticket.deliver(_answer(turn, prompt, ticket))


def _failure(reply: TurnReply) -> Refused:
    if reply.context_full:
        return _full()
    text = f"the model cannot read this conversation: {reply.error}"
    return Refused(400, text, param="messages")


def _full() -> Refused:
    text = "the conversation and an answer exceed the model's context length"
    return Refused(400, text, param="messages", code="context_length_exceeded")


def _refusal(error: Exception) -> Refused:
    """The client's response to an exception; one that the client did not cause is logged."""
    if isinstance(error, Refused):
        return error
    traceback.print_exception(error)
    return Refused(500, "no adapter could be chosen for this conversation; see the server's log")


def _answer(turn: Turn, prompt: int, ticket: Ticket) -> Completion:
    """`prompt`: tokens before the turn. Calls get new ids: the conversation may hold the others."""
    text = turn.reply["content"].strip()
    message: Message = {**turn.reply, "content": _before(text, ticket.ask.stops)}
    end = "length" if turn.truncated and message["content"] == text else "stop"
    if message.get("tool_calls"):
        message["tool_calls"] = [{**c, "id": f"call_{uuid4().hex}"} for c in message["tool_calls"]]
        end = "tool_calls"
    return Completion(message, end, prompt, len(turn.token_ids), ticket.adapter)


def _before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stops."""
    return text[: min((text.find(s) for s in stops if s in text), default=len(text))]
