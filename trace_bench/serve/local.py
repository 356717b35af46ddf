"""Answers by a model in this process: one thread runs it over the requests of all clients, which
join and leave its batch between two steps. What a request needs before is prepared beside it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from uuid import uuid4

from trace_bench.core.chat import with_guidance
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Message, Turn
from trace_bench.policies.local import LocalPolicy, PolicyThread
from trace_bench.policies.routing.merge import MergedSums
from trace_bench.policies.routing.router import make_router
from trace_bench.serve.request import ChatRequest, Completion, Refused, choose


class Local:
    """`app.Answerer`. `most`: the tokens of an answer whose request names no number; `sums`: where
    sums of adapters are written (see `merge`)."""

    def __init__(self, policy: LocalPolicy, agent: AgentSpec, most: int, sums: Path) -> None:
        policy.load(agent)
        self.engine = PolicyThread(policy)
        self._policy, self._agent, self._most = policy, agent, most
        self._router = make_router(agent, policy)
        self._sums = MergedSums(policy, agent, sums)
        self._numbers = itertools.count()

    async def answer(self, ask: ChatRequest) -> AsyncGenerator[str | Completion, None]:
        messages = with_guidance(ask.messages, self._agent.prompt)
        prompt = await asyncio.to_thread(self._tokens, ask, messages)
        adapter = await asyncio.wrap_future(self.engine.call(self._adapter, ask))
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[str | TurnReply] = asyncio.Queue()

        def deliver(event: str | TurnReply) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        def grow(text: str) -> bool:
            stopped = _before(text, ask.stops) != text
            if ask.stream and not stopped:  # what no stop can still take back
                deliver(text[: len(text) + 1 - max(map(len, ask.stops), default=1)])
            return stopped

        number, said = next(self._numbers), 0
        seed = ask.seed if ask.seed is not None else stable_seed("serve", number)
        how = (adapter, seed % 2**63, ask.temperature, ask.most or self._most)
        request = TurnRequest(number, messages, ask.tools, *how)
        self.engine.start(request, deliver, grow if ask.stream or ask.stops else None)
        try:
            while isinstance(event := await events.get(), str):
                if len(event) > said:
                    yield event[said:]
                    said = len(event)
        finally:
            self.engine.cancel(number)
        if event.turn is None:
            raise Refused(500, f"the model gives no answer: {event.error}")
        answer = _completion(event.turn, prompt, ask, adapter)
        if ask.stream and len(text := answer.message["content"]) > said:
            yield text[said:]
        yield answer

    async def close(self) -> None:
        await asyncio.to_thread(self.engine.close)

    def _tokens(self, ask: ChatRequest, messages: Sequence[Message]) -> int:
        """Of the prompt, which stays in the chat's cache for the engine. Raises Refused."""
        try:
            tokens = len(self._policy.chat.first(messages, ask.tools))
        except UserError as error:
            text = f"the model cannot read this conversation: {error.__cause__ or error}"
            raise Refused(400, text, param="messages") from error
        if tokens >= self._policy.context:
            text = "the conversation and an answer exceed the model's context length"
            raise Refused(400, text, param="messages", code="context_length_exceeded")
        return tokens

    def _adapter(self, ask: ChatRequest) -> str | None:
        return self._sums.name_of(choose(self._router, ask, self._agent.prompt))


def _completion(turn: Turn, prompt: int, ask: ChatRequest, adapter: str | None) -> Completion:
    """`prompt`: its tokens. Calls get new ids: the conversation may hold the others."""
    text = turn.reply["content"].strip()
    message: Message = {**turn.reply, "content": _before(text, ask.stops)}
    end = "length" if turn.truncated and message["content"] == text else "stop"
    if message.get("tool_calls"):
        message["tool_calls"] = [{**c, "id": f"call_{uuid4().hex}"} for c in message["tool_calls"]]
        end = "tool_calls"
    return Completion(message, end, prompt, len(turn.token_ids), adapter)


def _before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stops."""
    return text[: min((text.find(s) for s in stops if s in text), default=len(text))]
