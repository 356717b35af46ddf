"""What answers requests: this process's engine, or servers behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from trace_bench.serve.completion import Answer, Shape
from trace_bench.serve.engine import Event, LocalEngine, Ticket
from trace_bench.serve.request import ChatRequest, Refused
from trace_bench.serve.settings import Model


class Backend(Protocol):
    """Answers a request whole, or as server-sent events; `note` gets facts for the log. Cancelling
    either frees what the request holds. Raises Refused."""

    async def whole(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> dict[str, Any]: ...
    def events(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]: ...
    def health(self) -> dict[str, Any]: ...  # with `status`: "ok" if it can answer
    async def close(self) -> None: ...


class Local:
    """The engine of this process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def whole(self, ask: ChatRequest, model: Model, note: dict[str, Any]) -> dict[str, Any]:
        async with aclosing(self._ask(ask, model, note)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    return Shape(ask.model).whole(event)
        raise AssertionError("the last event is an answer, or it raises")

    async def events(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        shape, said, begun = Shape(ask.model), "", False
        async with aclosing(self._ask(ask, model, note)) as found:
            async for event in found:
                text = event.message["content"] if isinstance(event, Answer) else event
                if not begun:
                    yield shape.first()
                    begun = True
                if len(text) > len(said):
                    yield shape.text(text[len(said) :])
                    said = text
                if isinstance(event, Answer):
                    for data in shape.last(event, ask.usage):
                        yield data

    def health(self) -> dict[str, Any]:
        return {"status": "broken" if self._engine.broken else "ok", **self._engine.load}

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)

    async def _ask(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[str | Answer, None]:
        """The engine's events for a request; the last one is the answer."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()
        done = False

        def deliver(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        ticket = Ticket(ask, model, deliver)
        self._engine.start(ticket)
        try:
            while not done:
                event = await events.get()
                done = not isinstance(event, str)
                note["adapter"] = ticket.adapter
                if isinstance(event, Refused):
                    raise event
                if isinstance(event, Answer):
                    note |= {"prompt": event.prompt, "completion": event.completion}
                yield event
        finally:
            if not done:
                self._engine.cancel(ticket)
