"""The HTTP side: keys, limits and responses. Requests are logged without their contents."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from trace_bench.core.limits import Limits
from trace_bench.serve.completion import error_body, error_event
from trace_bench.serve.request import ChatRequest, Model, Refused, ServeSettings, parse

Log = Callable[[str], None]
GONE = 499  # in the log: the client has gone before its answer


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
    """`asgi` is the application."""

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
        found = {**self._backend.health(), "open": self._open}
        return JSONResponse(found, 200 if found["status"] == "ok" else 503)

    async def _listed(self, request: Request) -> Response:
        try:
            self._check_key(request)
        except Refused as error:
            return _refusal(error)
        named = [
            {"id": name, "object": "model", "created": self._since, "owned_by": "trace_bench"}
            for name in self._models
        ]
        return JSONResponse({"object": "list", "data": named})

    async def _chat(self, request: Request) -> Response:
        line, open_ = _Line(self._log), False
        status: int | None = 500
        try:
            self._check_key(request)
            if self._open >= self._settings.requests:
                raise Refused(
                    429, f"{self._open} requests are in flight, as many as allowed; try again"
                )
            self._open, open_ = self._open + 1, True
            body = await self._body(request)
            line.ask = ask = parse(body, Limits(self._settings.body), self._settings.tokens)
            if (model := self._models.get(ask.model)) is None:
                names = ", ".join(self._models)
                text = f"the model {ask.model[:80]!r} does not exist; there are: {names}"
                raise Refused(404, text, param="model", code="model_not_found")
            if ask.stream:
                stream = await self._streamed(request, ask, model, line)
                status = None
                return stream
            answer = await _unless_gone(request, self._backend.whole(ask, model, line.note))
            status = 200
            return JSONResponse(answer)
        except Refused as error:
            status = error.status
            return _refusal(error)
        except ClientDisconnect:
            status = GONE
            return Response(status_code=GONE)
        finally:
            if status is not None:  # else the stream ends it
                self._open -= open_
                line.ended(status)

    async def _streamed(
        self, request: Request, ask: ChatRequest, model: Model, line: _Line
    ) -> Response:
        """A stream. What is refused before its first event is answered with an error's status."""
        events = self._backend.events(ask, model, line.note)
        try:
            first = await _unless_gone(request, anext(events))
        except BaseException:
            await events.aclose()
            raise

        def over(status: int) -> None:
            self._open -= 1
            line.ended(status)

        return _Stream(first, events, over)

    def _check_key(self, request: Request) -> None:
        """Raises Refused without the key, if there is one."""
        if self._key is None:
            return
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            raise Refused(401, "the key is wrong or missing (Authorization: Bearer KEY)")

    async def _body(self, request: Request) -> bytes:
        """The body, read no further than allowed. Raises Refused."""
        most = self._settings.body
        parts: list[bytes] = []
        async for part in request.stream():
            parts.append(part)
            if sum(map(len, parts)) > most:
                raise Refused(413, f"the body is longer than {most} bytes")
        return b"".join(parts)


class _Stream(StreamingResponse):
    """The events as a response. `over` is called once, with a status for the log, and the events
    are closed, however it ends: a client may go before anything was sent."""

    def __init__(
        self, first: bytes, events: AsyncGenerator[bytes, None], over: Callable[[int], None]
    ) -> None:
        super().__init__(self._sent(first), media_type="text/event-stream")
        self._events, self._over, self._status = events, over, GONE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
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
            yield error_event(error)


class _Line:
    """The log line of one request: status, duration, model, adapter, tokens; none of its text."""

    def __init__(self, log: Log) -> None:
        self._log, self._start = log, time.monotonic()
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
    return JSONResponse(error_body(error), error.status, headers)


async def _no_such(request: Request, error: Exception) -> Response:
    text = f"{request.method} {request.url.path[:80]} is not served"
    status = 405 if getattr(error, "status_code", 404) == 405 else 404
    return _refusal(Refused(status, text))


async def _fault(request: Request, error: Exception) -> Response:
    return _refusal(Refused(500, "the server has failed; see its log"))
