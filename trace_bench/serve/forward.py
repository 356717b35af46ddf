"""Answers by a server behind this one, such as vLLM with the agent's adapters: the router picks the
adapter from a conversation's first messages (or anew at every turn, where the agent does), the
agent's prompt is added, and the request goes on under the adapter's name there. The choice follows
from the messages alone, so that nothing is remembered here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from trace_bench.core.decode import read
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Router
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import AgentSpec, Message
from trace_bench.llm.client import BODY, CONNECT, Client, Endpoint, LLMError, Usage, decompressed
from trace_bench.play.steps import with_guidance
from trace_bench.policies.openai import CHAT, OpenAIPolicy, template_options
from trace_bench.policies.routing.merge import MergedSums, Mixture
from trace_bench.policies.routing.router import make_router
from trace_bench.policies.talk import first_choice
from trace_bench.serve.answer import Completion
from trace_bench.serve.request import ChatRequest, Model, Refused, choose

Events = AsyncGenerator[str | Completion, None]


class Forward:
    """`app.Answerer`. Loads the agent's adapters into the server; raises UserError if it does
    not answer, does not have the model or does not use an adapter. `sums`: where sums of adapters
    are written (see `merge`); `thinking`: whether the model is to think (None: as its template
    does)."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        agent: AgentSpec,
        most: int,
        sums: Path | None = None,
        thinking: bool | None = None,
    ) -> None:
        self._extra = template_options(thinking)
        self._agent, self._most, self._url = agent, most, endpoint.urls[0].rstrip("/")
        self._policy = OpenAIPolicy(
            endpoint, model, capacity=endpoint.concurrency, extra=self._extra
        )
        try:
            self._router: Router = make_router(agent, self._policy)
            self._policy.load(agent)
        except UserError:
            self._policy.close()  # with the adapters that were loaded by then
            raise
        self._sums = MergedSums(self._policy, agent, sums)
        self._deadline = endpoint.deadline
        self._one = asyncio.Lock()  # of what loads adapters
        self._client = Client(replace(endpoint, retries=0))  # the deadline is the whole answer's
        self._secret = self._client.secret
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {},
            trust_env=False,
            timeout=httpx.Timeout(endpoint.deadline, connect=CONNECT),
            limits=httpx.Limits(max_connections=endpoint.concurrency),
        )

    async def answer(self, ask: ChatRequest, model: Model) -> Events:
        adapter = await self._adapter(ask, model)
        body = self._body(ask, model, adapter)
        answering = self._streamed if ask.stream else self._whole
        for attempt in (1, 2):
            try:
                async with aclosing(answering(body, adapter)) as events:
                    async for event in events:
                        yield event
                return
            except LLMError as error:
                if attempt == 2 or error.status != 404 or adapter is None:
                    passed = error.status in (400, 413, 422)
                    text = f"the server behind this one: {error}"
                    raise Refused(error.status or 502 if passed else 502, text) from error
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                why = f"the server behind this one sent no usable answer: {error!r}"
                raise Refused(502, self._secret.clean(why)) from error
            await self._restore(adapter)  # the server was restarted

    def health(self) -> dict[str, Any]:
        return {"status": "ok", "backend": self._url}

    async def close(self) -> None:
        await self._http.aclose()
        await asyncio.to_thread(self._client.close)
        await asyncio.to_thread(self._policy.close)

    async def _adapter(self, ask: ChatRequest, model: Model) -> str | None:
        if not model.routed:
            return model.adapter
        try:
            choice: Any = await asyncio.to_thread(choose, self._router, ask, self._agent.prompt)
        except LLMError as error:
            raise Refused(502, f"the server behind this one gave no choice: {error}") from error
        if not isinstance(choice, Mixture):
            return choice  # type: ignore[no-any-return]
        async with self._one:
            return await asyncio.to_thread(self._sums.name_of, choice)

    async def _restore(self, adapter: str | None) -> None:
        try:
            async with self._one:
                await asyncio.to_thread(self._policy.servers.restore, 0, str(adapter))
        except (LLMError, UserError) as error:
            why = f"the server behind this one does not load {adapter} again: {error}"
            raise Refused(502, why) from error

    def _body(self, ask: ChatRequest, model: Model, adapter: str | None) -> dict[str, Any]:
        guided = with_guidance(ask.messages, self._agent.prompt if model.prompted else "")
        body = {
            "model": self._policy.servers.name_of(adapter),
            "messages": self._policy.servers.readable(guided),
            "temperature": ask.temperature,
            "max_tokens": ask.most or self._most,
            **self._extra,
        }
        passed = {"tools": ask.tools, "stop": ask.stops, "seed": ask.seed}
        return body | {name: value for name, value in passed.items() if value not in (None, ())}

    async def _whole(self, body: dict[str, Any], adapter: str | None) -> Events:
        reply = await asyncio.wrap_future(self._client.start(CHAT, body))
        choice = first_choice(reply)
        yield _completion(choice["message"], choice.get("finish_reason"), reply, adapter)

    async def _streamed(self, body: dict[str, Any], adapter: str | None) -> Events:
        """The text as it grows, held back where it may have begun with a piece of the key; calls of
        tools are in the last event alone."""
        until = asyncio.get_running_loop().time() + self._deadline
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        text, held, end = "", "", None
        usage: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        async with aclosing(self._events(asked, until)) as events:
            async for said in events:
                usage = said if said.get("usage") else usage
                for choice in said.get("choices") or ():
                    end = choice.get("finish_reason") or end
                    delta = choice["delta"]
                    _gather(calls, delta.get("tool_calls") or ())
                    piece, held = self._secret.split(held + (delta.get("content") or ""))
                    if piece:
                        text += piece
                        yield piece
        if held:
            yield held
        message: dict[str, Any] = {"role": "assistant", "content": text + held}
        if calls:
            message["tool_calls"] = self._secret.clean_value(list(calls.values()))
        yield _completion(message, end, usage, adapter)

    async def _events(self, body: dict[str, Any], until: float) -> AsyncGenerator[Any, None]:
        """The events of a stream to its end. Raises LLMError."""
        begun = False
        try:
            async with asyncio.timeout_at(until):
                request = self._http.build_request("POST", self._url + CHAT, json=body)
                answer = await self._http.send(request, stream=True)
            async with aclosing(answer):
                if answer.status_code != 200:
                    async with asyncio.timeout_at(until):
                        said = await decompressed(answer.headers, answer.aiter_raw())
                    text = self._secret.clean(said.decode(errors="replace"))
                    raise LLMError(f"HTTP {answer.status_code}: {text[:500]}", answer.status_code)
                async for line in _lines(answer, until):
                    if not line.startswith(b"data:"):
                        continue
                    begun = True
                    if (data := line.removeprefix(b"data:").strip()) == b"[DONE]":
                        return
                    said = self._secret.clean_value(without_surrogates(read(data, BODY)))
                    if "choices" not in said:
                        raise LLMError(str(said)[:500])
                    yield said
        except (httpx.HTTPError, TimeoutError) as error:
            raise LLMError(f"it does not answer ({type(error).__name__})") from error
        raise LLMError(
            "a stream that was cut before its end" if begun else "a stream without events"
        )


def _gather(calls: dict[int, dict[str, Any]], deltas: Any) -> None:
    """Adds the pieces of calls in an event to the calls so far."""
    for delta in deltas:
        call = calls.setdefault(delta["index"], {"function": {"name": "", "arguments": ""}})
        call |= {key: delta[key] for key in ("id", "type") if delta.get(key)}
        for key, piece in (delta.get("function") or {}).items():
            call["function"][key] = call["function"].get(key, "") + (piece or "")


def _completion(
    message: Mapping[str, Any], end: str | None, reply: Mapping[str, Any], adapter: str | None
) -> Completion:
    named = ("role", "content", "tool_calls")
    kept: Message = {k: message[k] for k in named if message.get(k) is not None}
    usage = Usage()
    usage.add(reply)
    used = usage.prompt_tokens, usage.completion_tokens
    return Completion({"content": "", **kept}, str(end or "stop"), *used, adapter)


async def _lines(answer: httpx.Response, until: float) -> AsyncGenerator[bytes, None]:
    """The lines of a stream. They end at a line feed alone: JSON may hold the other characters that
    end lines elsewhere, such as U+2028. Raises TimeoutError at the loop's time `until`, and
    LLMError for a line beyond `BODY.size`."""
    begun = bytearray()
    pieces = answer.aiter_bytes()
    while True:
        async with asyncio.timeout_at(until):
            piece = await anext(pieces, None)
        if piece is None:
            return
        *ended, last = piece.split(b"\n")
        for line in ended:
            yield bytes(begun) + line
            begun.clear()
        begun += last
        if len(begun) > BODY.size:
            raise LLMError(f"it sent over {BODY.size} bytes at once")
