"""The HTTP side: keys, limits and responses. Requests are logged without their contents.

A request takes its place once it is there whole; a client that is slow with its head, its body or
with reading is cut off after `ServeSettings.patience` seconds. Without a key,
a web page in a browser of this machine must not reach the agent: `Host` must then name this
machine, and a body must be JSON by its type, which a page of another site cannot send unasked.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trace_bench.core.limits import Limits
from trace_bench.serve.answer import event
from trace_bench.serve.request import ChatRequest, Model, Refused, ServeSettings, parse

Log = Callable[[str], None]
GONE = 499  # in the log: the client has gone before its answer
HERE = ("localhost", "127.0.0.1", "::1")


class Answerer(Protocol):
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


class App:
    def __init__(
        self,
        backend: Answerer,
        models: Mapping[str, Model],
        settings: ServeSettings,
        key: str | None,
        log: Log,
    ) -> None:
        self._backend, self._models, self._settings = backend, models, settings
        self._key, self._log = key, log
        self._open = 0  # requests for answers
        self._since = int(time.time())
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._listed),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        self.asgi = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={404: _no_such, 405: _no_such, 500: _fault},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self._backend.close()

    async def _health(self, request: Request) -> Response:
        health = {**self._backend.health(), "open": self._open}
        return JSONResponse(health, 200 if health["status"] == "ok" else 503)

    async def _listed(self, request: Request) -> Response:
        try:
            self._check_key(request)
        except Refused as error:
            return _refusal(error)
        head = {"object": "model", "created": self._since, "owned_by": "trace_bench"}
        named = [{"id": name, **head} for name in self._models]
        return JSONResponse({"object": "list", "data": named})

    async def _chat(self, request: Request) -> Response:
        """The answer, or the error in its place, with its line in the log."""
        line = _Line(self._log)
        status: int | None = 500
        try:
            self._check_key(request)
            response = await self._answer(request, line)
            status = None if isinstance(response, _Stream) else 200
            return response
        except Refused as error:
            status = error.status
            return _refusal(error)
        except ClientDisconnect:
            status = GONE
            return Response(status_code=GONE)
        finally:
            if status is not None:  # else the stream ends it
                self._over(line, status)

    def _over(self, line: _Line, status: int) -> None:
        self._open -= line.placed
        line.ended(status)

    async def _answer(self, request: Request, line: _Line) -> Response:
        body = await self._body(request)
        line.ask = ask = parse(body, Limits(self._settings.body), self._settings.tokens)
        if self._open >= (most := self._settings.requests):
            raise Refused(429, f"{self._open} of at most {most} answers are in flight; wait")
        line.placed = True
        self._open += 1
        if (model := self._models.get(ask.model)) is None:
            names = ", ".join(self._models)
            text = f"the model {ask.model[:80]!r} does not exist; there are: {names}"
            raise Refused(404, text, param="model", code="model_not_found")
        if not ask.stream:
            answering = self._backend.whole(ask, model, line.note)
            return JSONResponse(await _unless_gone(request, answering))
        events = self._backend.events(ask, model, line.note)
        try:  # what is refused before the first event is answered with an error's status
            first = await _unless_gone(request, anext(events))
        except BaseException:
            await events.aclose()
            raise
        over = partial(self._over, line)
        return _Stream(first, events, over, self._settings.patience)

    def _check_key(self, request: Request) -> None:
        """Raises Refused for a wrong key; where none is set, for a request to another host."""
        if self._key is None:
            if request.url.hostname not in HERE:
                raise Refused(403, "the header Host does not name this machine; serve with a key")
            return
        sent = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(sent, f"Bearer {self._key}".encode()):
            raise Refused(401, "the key is wrong or missing (Authorization: Bearer KEY)")

    async def _body(self, request: Request) -> bytes:
        """The body, read no further and no longer than allowed. Raises Refused."""
        most, patience = self._settings.body, self._settings.patience
        kind = request.headers.get("content-type", "none").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"the content type is {kind[:80]!r}; allowed: application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(patience):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise Refused(413, f"the body is longer than {most} bytes")
        except TimeoutError as error:
            raise Refused(408, f"the body was not there within {patience:g} s") from error
        return bytes(body)


class _Stream(StreamingResponse):
    """The events as a response. `over` is called once, with a status for the log, and the events
    are closed, however it ends: a client may go before anything was sent."""

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        over: Callable[[int], None],
        patience: float,
    ) -> None:
        super().__init__(self._sent(first), media_type="text/event-stream")
        self._events, self._over, self._status = events, over, GONE
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def soon(message: Message) -> None:
            try:
                async with asyncio.timeout(self._patience):
                    await send(message)
            except TimeoutError as error:
                raise ClientDisconnect from error  # it does not read

        try:
            await super().__call__(scope, receive, soon)
        except ClientDisconnect:
            return
        finally:
            await self._events.aclose()
            self._over(self._status)

    async def _sent(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        try:
            async for data in self._events:
                yield data
            self._status = 200
        except Refused as error:
            self._status = error.status
            yield event(error.body())


class _Line:
    """The log line of one request: status, duration, model, adapter, tokens; none of its text."""

    def __init__(self, log: Log) -> None:
        self._log, self._start = log, time.monotonic()
        self.placed = False  # whether the request has taken a place
        self.ask: ChatRequest | None = None
        self.note: dict[str, Any] = {}

    def ended(self, status: int) -> None:
        text = f"chat {status} {time.monotonic() - self._start:.3f} s"
        if self.ask is not None:
            text += f", model {self.ask.model[:80]!r}, {len(self.ask.messages)} messages"
        if "adapter" in self.note:
            text += f", adapter {self.note['adapter'] or 'none'}"
        if self.note.get("completion") is not None:
            text += f", {self.note['prompt']} + {self.note['completion']} tokens"
        self._log(text)


async def _unless_gone(request: Request, answering: Any) -> Any:
    """The answer. Raises ClientDisconnect, and cancels the work, if the client goes first."""
    work = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientDisconnect
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refusal(error: Refused) -> Response:
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), error.status, headers)


async def _no_such(request: Request, error: Exception) -> Response:
    text = f"{request.method} {request.url.path[:80]} is not served"
    return _refusal(Refused(getattr(error, "status_code", 404), text))


async def _fault(request: Request, error: Exception) -> Response:
    return _refusal(Refused(500, "the server has failed; see its log"))


class _Timely(H11Protocol):
    """Closes a connection that sends no whole head within `patience` seconds."""

    patience: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._due.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._due.cancel()
        self._wait()

    def _wait(self) -> None:
        self._due = self.loop.call_later(self.patience, self._late)

    def _late(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class Announced(uvicorn.Server):
    """Says where it serves once it does: the port may be any that was free."""

    def __init__(self, how: uvicorn.Config, say: Callable[[str], None]) -> None:
        super().__init__(how)
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self._say(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def config(app: App, settings: ServeSettings, **where: Any) -> uvicorn.Config:
    """How uvicorn serves the app. `where`: its arguments `host` and `port`."""
    return uvicorn.Config(
        app.asgi,
        http=type("Timely", (_Timely,), {"patience": settings.patience}),
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=int(settings.grace),
        backlog=max(2048, settings.requests),
        limit_concurrency=4 * settings.requests + 1024,  # connections: each may hold a body
        **where,
    )
