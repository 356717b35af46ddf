"""Answers by a server behind this one, such as vLLM with the agent's adapters: the router picks the
adapter from a conversation's first messages, the agent's prompt is added, and the request goes on
under the adapter's name there. Thoughts are taken out of an answer, so that it is there whole
before a client sees any of it, in one piece where it is streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.chat import with_guidance
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Router
from trace_bench.core.text import spoken
from trace_bench.core.types import AgentSpec, Message
from trace_bench.llm.client import Client, Endpoint, LLMError, Usage
from trace_bench.policies.openai import CHAT, OpenAIPolicy, template_options
from trace_bench.policies.routing.merge import MergedSums
from trace_bench.policies.routing.router import make_router
from trace_bench.policies.talk import first_choice
from trace_bench.serve.request import ChatRequest, Completion, Refused, choose


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
        sums: Path,
        thinking: bool | None = None,
    ) -> None:
        self._extra = template_options(thinking)
        self._agent, self._most = agent, most
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
        self._one = asyncio.Lock()  # of what loads adapters
        self._client = Client(replace(endpoint, retries=0))  # the deadline is the whole answer's

    async def answer(self, ask: ChatRequest) -> AsyncGenerator[str | Completion, None]:
        try:
            choice: Any = await asyncio.to_thread(choose, self._router, ask, self._agent.prompt)
            async with self._one:
                adapter = await asyncio.to_thread(self._sums.name_of, choice)
            reply = await asyncio.wrap_future(self._client.start(CHAT, self._body(ask, adapter)))
            answer = _completion(reply, adapter)
        except LLMError as error:
            status = error.status if error.status in (400, 413, 422) else 502
            raise Refused(status, f"the server behind this one: {error}") from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"the server behind this one sent no usable answer: {error!r}"
            raise Refused(502, why) from error
        if ask.stream and answer.message["content"]:
            yield answer.message["content"]
        yield answer

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)
        await asyncio.to_thread(self._policy.close)

    def _body(self, ask: ChatRequest, adapter: str | None) -> dict[str, Any]:
        guided = with_guidance(ask.messages, self._agent.prompt)
        body = {
            "model": self._policy.servers.name_of(adapter),
            "messages": self._policy.servers.readable(guided),
            "temperature": ask.temperature,
            "max_tokens": ask.most or self._most,
            **self._extra,
        }
        passed = {"tools": ask.tools, "stop": ask.stops, "seed": ask.seed}
        return body | {name: value for name, value in passed.items() if value not in (None, ())}


def _completion(reply: Mapping[str, Any], adapter: str | None) -> Completion:
    choice, usage = first_choice(reply), Usage()
    usage.add(reply)
    message: Message = {"role": "assistant", "content": spoken(choice["message"])[1].strip()}
    if calls := choice["message"].get("tool_calls"):
        message["tool_calls"] = [dict(call) for call in calls]
    used = usage.prompt_tokens, usage.completion_tokens
    return Completion(message, str(choice.get("finish_reason") or "stop"), *used, adapter)
