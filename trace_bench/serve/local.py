"""Answers by this process's own engine: requests are prepared here, beside the engine's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from trace_bench.serve.answer import AnswerShape, Completion
from trace_bench.serve.engine import Event, LocalEngine, Ticket, full
from trace_bench.serve.request import ChatRequest, Model, Refused


class Local:
    """`app.Answerer`: the engine of this process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def whole(self, ask: ChatRequest, model: Model, note: dict[str, Any]) -> dict[str, Any]:
        async with aclosing(self._ask(ask, model, note)) as events:
            async for event in events:
                if isinstance(event, Completion):
                    return AnswerShape(ask.model).whole(event)
        raise AssertionError("the last event is the answer, or it raises")

    async def events(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        shape = AnswerShape(ask.model)
        said: str | None = None
        async with aclosing(self._ask(ask, model, note)) as events:
            async for event in events:
                if said is None:
                    said = ""
                    yield shape.delta(role="assistant", content="")
                text = event.message["content"] if isinstance(event, Completion) else event
                if len(text) > len(said):
                    yield shape.delta(content=text[len(said) :])
                    said = text
                if isinstance(event, Completion):
                    for data in shape.last(event, ask.stream_options.include_usage):
                        yield data

    def health(self) -> dict[str, Any]:
        return {"status": "broken" if self._engine.broken else "ok", **self._engine.load}

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)

    async def _ask(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[str | Completion, None]:
        """The growing text, if it is streamed, and the answer."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        unread = await asyncio.to_thread(self._unread, ask, model)
        ticket = Ticket(ask, model, unread, deliver)
        self._engine.start(ticket)
        event: Event = ""
        try:
            while isinstance(event, str):
                event = await events.get()
                note["adapter"] = ticket.adapter
                if isinstance(event, Refused):
                    raise event
                if isinstance(event, Completion):
                    note |= {"prompt": event.prompt, "completion": event.completion}
                yield event
        finally:
            if isinstance(event, str):
                self._engine.cancel(ticket)

    def _unread(self, ask: ChatRequest, model: Model) -> Refused | None:
        """Why the conversation cannot be read from its beginning, if it cannot; what is read stays
        in the chat's cache, for the engine. Raises Refused for one that is far too long."""
        policy = self._engine.policy
        if sum(len(m["content"]) for m in ask.messages) > policy.context * policy.chat.longest:
            raise full()
        try:
            tokens = len(policy.chat.first(self._engine.guided(ask, model), ask.tools))
        except Exception as error:  # templates may raise any exception
            text = f"the model cannot read this conversation: {error.__cause__ or error}"
            return Refused(400, text, param="messages")
        return full() if tokens >= policy.context else None
