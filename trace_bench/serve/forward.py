"""Answers by a server behind this one, such as vLLM with the agent's adapters: the router picks the
adapter from a conversation's first messages (or anew at every turn, where the agent does), the
agent's prompt is added, and the request goes on under the adapter's name there. The choice follows
from the messages alone, so that nothing is remembered here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from trace_bench.core.limits import Unreadable, read
from trace_bench.core.protocols import Router
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import AgentSpec, Message
from trace_bench.llm.client import BODY, CONNECT, Endpoint, LLMError, Secret, decompressed
from trace_bench.play.steps import with_guidance
from trace_bench.policies.openai import CHAT, OpenAIPolicy
from trace_bench.policies.routing.merge import MergedSums, Mixture
from trace_bench.policies.routing.router import make_router
from trace_bench.serve.completion import DONE, event
from trace_bench.serve.request import ChatRequest, Model, Refused, choose

NAME = "model"  # the field of every answer that holds a name of the server behind


class Forward:
    """`app.Answerer`. Loads the agent's adapters into the server; raises UserError if it does
    not answer, does not have the model or does not use an adapter."""

    def __init__(self, endpoint: Endpoint, model: str, agent: AgentSpec, most: int) -> None:
        self._agent, self._most, self._url = agent, most, endpoint.urls[0].rstrip("/")
        self._policy = OpenAIPolicy(endpoint, model, capacity=endpoint.concurrency, extra=None)
        self._router: Router = make_router(agent, self._policy)
        self._policy.load(agent)
        self._sums = MergedSums(self._policy, agent)
        self._one = asyncio.Lock()  # of what loads adapters
        self._secret = Secret(endpoint.key)
        headers = {"Accept-Encoding": "identity"}
        if endpoint.key:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(endpoint.deadline, connect=CONNECT),
            limits=httpx.Limits(max_connections=endpoint.concurrency),
        )

    async def whole(self, ask: ChatRequest, model: Model, note: dict[str, Any]) -> dict[str, Any]:
        body = await self._body(ask, model, note)
        try:
            async with self._http.stream("POST", self._url + CHAT, json=body) as answer:
                said = await self._said(answer)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        usage = said.get("usage")
        if isinstance(usage, dict):
            note |= {
                "prompt": usage.get("prompt_tokens"),
                "completion": usage.get("completion_tokens"),
            }
        return {**said, NAME: ask.model}

    async def events(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        body = await self._body(ask, model, note) | {"stream": True}
        if ask.usage:
            body["stream_options"] = {"include_usage": True}
        try:
            async with self._http.stream("POST", self._url + CHAT, json=body) as answer:
                if answer.status_code != 200:
                    await self._said(answer)
                begun = False
                async for line in _lines(answer):
                    if line.startswith(b"data:"):
                        begun = True
                        yield self._renamed(line.removeprefix(b"data:").strip(), ask.model)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if not begun:
            raise Refused(502, "the server behind this one sent a stream without events")

    def health(self) -> dict[str, Any]:
        return {"status": "ok", "backend": self._url}

    async def close(self) -> None:
        await self._http.aclose()
        await asyncio.to_thread(self._policy.close)

    async def _body(self, ask: ChatRequest, model: Model, note: dict[str, Any]) -> dict[str, Any]:
        note["adapter"] = adapter = await self._adapter(ask, model)
        messages = self._policy.servers.readable(self._guided(ask.messages, model))
        body = {
            NAME: self._policy.servers.name_of(adapter),
            "messages": messages,
            "temperature": ask.temperature,
            "max_tokens": ask.max_tokens or self._most,
        }
        if ask.tools:
            body["tools"] = list(ask.tools)
        if ask.response_format is not None:
            body["response_format"] = dict(ask.response_format)
        return body if ask.seed is None else {**body, "seed": ask.seed}

    async def _said(self, answer: httpx.Response) -> dict[str, Any]:
        """The object in an answer. Raises Refused, with the server's own words for a refusal, but
        never with the key for it."""
        try:
            said = self._clean(await decompressed(answer))
        except Unreadable as error:
            raise _unusable(error) from error
        status = answer.status_code
        if status == 200 and isinstance(said, dict):
            return said
        found = said.get("error", said) if isinstance(said, Mapping) else said
        message = found.get("message") if isinstance(found, Mapping) else found
        code = found.get("code") if isinstance(found, Mapping) else None
        own = status if status in (400, 413, 422, 429, 503) else 502
        code = code if isinstance(code, str) else None
        raise Refused(own, f"the server behind this one: {str(message)[:500]}", code=code)

    def _renamed(self, data: bytes, name: str) -> bytes:
        """An event under the name that the client asked for. Raises Refused for one that is no
        JSON."""
        if data == b"[DONE]":
            return DONE
        try:
            said = self._clean(data)
        except Unreadable as error:
            raise _unusable(error) from error
        return event({**said, NAME: name} if isinstance(said, dict) and NAME in said else said)

    def _clean(self, data: bytes) -> Any:
        """The value of a JSON text, without the key. Raises Unreadable."""
        return self._secret.clean_value(without_surrogates(read(data, BODY)))

    def _guided(self, messages: tuple[Message, ...], model: Model) -> tuple[Message, ...]:
        return with_guidance(messages, self._agent.prompt if model.prompted else "")

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


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The lines of a stream. They end at a line feed alone: JSON may hold the other characters that
    end lines elsewhere, such as U+2028. Raises Refused for a line beyond `BODY.size`."""
    begun = bytearray()
    async for piece in answer.aiter_raw():
        *ended, last = piece.split(b"\n")
        for line in ended:
            yield bytes(begun) + line
            begun.clear()
        begun += last
        if len(begun) > BODY.size:
            raise Refused(502, f"the server behind this one sent over {BODY.size} bytes at once")
    if begun:
        yield bytes(begun)


def _unusable(error: Unreadable) -> Refused:
    return Refused(502, f"the server behind this one sent no usable JSON: {error}")


def _unreachable(error: httpx.HTTPError) -> Refused:
    return Refused(502, f"the server behind this one does not answer ({type(error).__name__})")
