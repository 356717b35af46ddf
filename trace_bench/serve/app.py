"""The HTTP side: keys, limits and responses. Requests are logged without their contents.

A request takes its place once it is there whole; a client that is slow with its body or with
reading is cut off after `ServeSettings.patience` seconds. Without a key, a web page in a browser of
this machine must not reach the agent: `Host` must then name this machine, and a body must be JSON
by its type, which a page of another site cannot send unasked.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from trace_bench.core.decode import Limits
from trace_bench.serve.request import ChatRequest, Completion, Refused, ServeSettings, parse

GONE = 499  # in the log: the client has gone before its answer
DONE = b"data: [DONE]\n\n"
HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class AnswerShape:
    """An answer as OpenAI's chat completions have it, whole or as server-sent events."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answer: Completion) -> dict[str, Any]:
        choice = {"index": 0, "message": answer.message, "finish_reason": answer.end}
        return {**self._head("chat.completion"), "choices": [choice], "usage": answer.usage}

    def delta(self, end: str | None = None, **delta: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def last(self, answer: Completion, with_usage: bool) -> list[bytes]:
        """What follows the text: tool calls, the reason of the end, the usage if it is wanted."""
        calls: Sequence[Mapping[str, Any]] = answer.message.get("tool_calls", ())
        called = [self.delta(tool_calls=[{"index": i, **call}]) for i, call in enumerate(calls)]
        head = {**self._head("chat.completion.chunk"), "choices": []}
        used = [event({**head, "usage": answer.usage})] if with_usage else []
        return [*called, self.delta(answer.end), *used, DONE]

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


class Answerer(Protocol):
    def answer(self, ask: ChatRequest) -> AsyncGenerator[str | Completion, None]:
        """The pieces of the text as they come, if the answer is streamed, and last the whole
        answer. Closing it frees what the request holds. Raises Refused."""
        ...

    async def close(self) -> None: ...


class App:
    """`asgi` is the application; called itself, it is that of the answers alone."""

    def __init__(
        self,
        backend: Answerer,
        settings: ServeSettings,
        key: str | None,
        log: Callable[[str], None],
    ) -> None:
        self._backend, self._settings, self._key, self._log = backend, settings, key, log
        self._open = 0  # requests for answers
        self._since = int(time.time())
        routes = [
            Route("/v1/models", self._listed),
            Route("/v1/chat/completions", self, methods=["POST"]),
        ]
        refusals: Any = {Refused: _refused}
        self.asgi = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=refusals)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self._backend.close()

    async def _listed(self, request: Request) -> Response:
        self._check_key(request)
        agent = {"id": self._settings.name, "object": "model", "created": self._since}
        return JSONResponse({"object": "list", "data": [{**agent, "owned_by": "trace_bench"}]})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, and logs it however it ends."""
        call = _Call(Request(scope, receive), send, self._settings.patience)
        try:
            self._check_key(call.request)
            body = await self._body(call.request)
            call.ask = ask = parse(body, Limits(self._settings.body), self._settings.tokens)
            if ask.model != (name := self._settings.name):
                text = f"the model {ask.model[:80]!r} does not exist; there is: {name}"
                raise Refused(404, text, param="model", code="model_not_found")
            if self._open >= (most := self._settings.requests):
                raise Refused(429, f"{self._open} of at most {most} answers are in flight; wait")
            self._open += 1
            try:
                await call.answer(self._backend.answer(ask))
            finally:
                self._open -= 1
        except Refused as error:
            call.status = error.status
            raise
        except ClientDisconnect:
            call.status = GONE
        finally:
            self._log(call.line())

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


class _Call:
    """One request on its way to its answer and its line in the log."""

    def __init__(self, request: Request, send: Send, patience: float) -> None:
        self.request, self._send, self._patience = request, send, patience
        self._start = time.monotonic()
        self.status = 500
        self.ask: ChatRequest | None = None
        self._answer: Completion | None = None

    async def answer(self, events: AsyncGenerator[str | Completion, None]) -> None:
        """Sends the answer. Raises Refused while nothing is sent, and ClientDisconnect."""
        assert self.ask is not None
        shape, request = AnswerShape(self.ask.model), self.request
        async with aclosing(events):
            # What is refused before the first piece is answered with an error's status.
            first = await _unless_gone(request, anext(events))
            self.status = GONE  # until all is sent
            response: Response
            if isinstance(first, Completion) and not self.ask.stream:
                self._answer, self.status = first, 200
                response = JSONResponse(shape.whole(first))
            else:
                sent = self._streamed(shape, first, events)
                response = StreamingResponse(sent, media_type="text/event-stream")
            await response(request.scope, request.receive, self._soon)

    async def _streamed(
        self, shape: AnswerShape, first: str | Completion, events: AsyncIterator[str | Completion]
    ) -> AsyncIterator[bytes]:
        assert self.ask is not None
        yield shape.delta(role="assistant", content="")
        piece = first
        try:
            while not isinstance(piece, Completion):
                yield shape.delta(content=piece)
                piece = await anext(events)
        except Refused as error:
            self.status = error.status
            yield event(error.body())
            return
        self._answer = piece
        for data in shape.last(piece, self.ask.stream_options.include_usage):
            yield data
        self.status = 200

    async def _soon(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError as error:
            raise ClientDisconnect from error  # it does not read

    def line(self) -> str:
        """Status, duration, model, adapter and tokens; none of the text."""
        text = f"chat {self.status} {time.monotonic() - self._start:.3f} s"
        if self.ask is not None:
            text += f", model {self.ask.model[:80]!r}, {len(self.ask.messages)} messages"
        if (answer := self._answer) is not None:
            text += f", adapter {answer.adapter or 'none'}"
            text += f", {answer.prompt} + {answer.completion} tokens"
        return text


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


async def _refused(request: Request, error: Refused) -> Response:
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), error.status, headers)


def config(app: App, settings: ServeSettings, **where: Any) -> uvicorn.Config:
    """How uvicorn serves the app. `where`: its arguments `host` and `port`."""
    return uvicorn.Config(
        app.asgi,
        access_log=False,
        log_level="info",
        timeout_graceful_shutdown=int(settings.grace),
        backlog=max(2048, settings.requests),
        limit_concurrency=4 * settings.requests + 1024,  # connections: each may hold a body
        **where,
    )
