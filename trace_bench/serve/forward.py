"""Answers by a server behind this one, such as vLLM with the agent's adapters: the router picks the
adapter from a conversation's first messages (or anew at every turn, where the agent does), the
agent's prompt is added, and the request goes on under the adapter's name there. The choice follows
from the messages alone, so that nothing is remembered here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import httpx

from trace_bench.core.limits import Unreadable, read
from trace_bench.core.protocols import Router
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import AdapterRef, AgentSpec, Message
from trace_bench.llm.client import BODY, CONNECT, Endpoint, LLMError
from trace_bench.play.rollouts import with_guidance
from trace_bench.policies.openai import CHAT, OpenAIPolicy
from trace_bench.policies.routing.merge import Mixture, merge
from trace_bench.policies.routing.router import make_router
from trace_bench.serve.conversations import choose
from trace_bench.serve.request import ChatRequest, Refused
from trace_bench.serve.settings import Model

NAME = "model"  # the field of every answer that holds a name of the server behind


class Forward:
    """`backend.Backend`. Loads the agent's adapters into the server; raises UserError if it does
    not answer, does not have the model or does not use an adapter."""

    def __init__(self, endpoint: Endpoint, model: str, agent: AgentSpec, most: int) -> None:
        self._agent, self._most, self._url = agent, most, endpoint.urls[0]
        self._policy = OpenAIPolicy(endpoint, model, capacity=endpoint.concurrency, extra=None)
        self._policy.load(agent)
        self._router: Router = make_router(agent, self._policy)
        self._mixtures: dict[str, AdapterRef] = {}
        self._one = asyncio.Lock()  # of what loads adapters
        headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
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
            answer = await self._http.post(self._url + CHAT, json=body)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        said = _read(answer.status_code, answer.content)
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
                    _read(answer.status_code, await answer.aread())
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        yield _renamed(line.removeprefix("data:").strip(), ask.model)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error

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
        return body if ask.seed is None else {**body, "seed": ask.seed}

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
            if choice.name not in self._mixtures:
                self._mixtures[choice.name] = merge(choice, self._agent.adapters)
                every = (*self._agent.adapters, *self._mixtures.values())
                await asyncio.to_thread(self._policy.load, replace(self._agent, adapters=every))
        return self._mixtures[choice.name].name


def _read(status: int, content: bytes) -> dict[str, Any]:
    """The object in an answer. Raises Refused, with the server's own words for a refusal."""
    try:
        said = without_surrogates(read(content, BODY))
    except Unreadable as error:
        raise Refused(502, f"the server behind this one sent no usable JSON: {error}") from error
    if status == 200 and isinstance(said, dict):
        return said
    found = said.get("error", said) if isinstance(said, Mapping) else said
    message = found.get("message") if isinstance(found, Mapping) else found
    code = found.get("code") if isinstance(found, Mapping) else None
    own = status if status in (400, 413, 422, 429, 503) else 502
    code = code if isinstance(code, str) else None
    raise Refused(own, f"the server behind this one: {str(message)[:500]}", code=code)


def _renamed(data: str, name: str) -> bytes:
    """An event under the name that the client asked for."""
    try:
        said = read(data, BODY)
    except Unreadable:
        return f"data: {data}\n\n".encode()  # such as [DONE]
    said = {**said, NAME: name} if isinstance(said, dict) and NAME in said else said
    return f"data: {json.dumps(said)}\n\n".encode()


def _unreachable(error: httpx.HTTPError) -> Refused:
    return Refused(502, f"the server behind this one does not answer ({type(error).__name__})")
