"""Answers by a server behind this one, such as vLLM with the agent's adapters: the router picks the
adapter from a conversation's first messages (or anew at every turn, where the agent does), the
agent's prompt is added, and the request goes on under the adapter's name there. The choice follows
from the messages alone, so that nothing is remembered here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from trace_bench.core.errors import UserError
from trace_bench.core.limits import Unreadable, read
from trace_bench.core.protocols import Router
from trace_bench.core.text import without_surrogates
from trace_bench.core.types import AgentSpec
from trace_bench.llm.client import BODY, CONNECT, Endpoint, LLMError, Secret, decompressed
from trace_bench.play.steps import with_guidance
from trace_bench.policies.endpoints import template_options
from trace_bench.policies.openai import CHAT, OpenAIPolicy
from trace_bench.policies.routing.merge import MergedSums, Mixture
from trace_bench.policies.routing.router import make_router
from trace_bench.serve.answer import DONE, event
from trace_bench.serve.request import ChatRequest, Model, Refused, choose

NAME = "model"  # the field of every answer that holds a name of the server behind


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
        how: dict[str, Any] = {"capacity": endpoint.concurrency, "extra": self._extra}
        self._policy = OpenAIPolicy(endpoint, model, **how)
        try:
            self._router: Router = make_router(agent, self._policy)
            self._policy.load(agent)
        except UserError:
            self._policy.close()  # with the adapters that were loaded by then
            raise
        self._sums = MergedSums(self._policy, agent, sums)
        self._deadline = endpoint.deadline
        self._one = asyncio.Lock()  # of what loads adapters
        self._secret = Secret(endpoint.key)
        headers = {"Accept-Encoding": "identity"}
        if endpoint.key:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        self._http = httpx.AsyncClient(
            headers=headers,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(None, connect=CONNECT),
            limits=httpx.Limits(max_connections=endpoint.concurrency),
        )

    async def whole(self, ask: ChatRequest, model: Model, note: dict[str, Any]) -> dict[str, Any]:
        body = await self._body(ask, model, note)
        try:
            async with asyncio.timeout(self._deadline):
                async with aclosing(await self._answer(body, note["adapter"])) as answer:
                    said = await self._said(answer)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unreachable(error) from error
        if isinstance(usage := said.get("usage"), dict):
            note["prompt"] = usage.get("prompt_tokens")
            note["completion"] = usage.get("completion_tokens")
        return {**said, NAME: ask.model}

    async def events(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        body = await self._body(ask, model, note) | {"stream": True}
        if ask.stream_options.include_usage:
            body["stream_options"] = {"include_usage": True}
        until = asyncio.get_running_loop().time() + self._deadline
        texts, begun = _Texts(self._secret), False
        try:
            async with asyncio.timeout_at(until):
                answer = await self._answer(body, note["adapter"])
            async with aclosing(answer):
                if answer.status_code != 200:
                    async with asyncio.timeout_at(until):
                        await self._said(answer)
                async for line in _lines(answer, until):
                    if not line.startswith(b"data:"):
                        continue
                    begun = True
                    if (data := line.removeprefix(b"data:").strip()) == b"[DONE]":
                        yield DONE
                        return
                    for said in self._events(data, texts):
                        named = isinstance(said, dict) and NAME in said
                        yield event({**said, NAME: ask.model} if named else said)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unreachable(error) from error
        why = "a stream that was cut before its end" if begun else "a stream without events"
        raise Refused(502, f"the server behind this one sent {why}")

    def health(self) -> dict[str, Any]:
        return {"status": "ok", "backend": self._url}

    async def close(self) -> None:
        await self._http.aclose()
        await asyncio.to_thread(self._policy.close)

    async def _body(self, ask: ChatRequest, model: Model, note: dict[str, Any]) -> dict[str, Any]:
        note["adapter"] = adapter = await self._adapter(ask, model)
        guided = with_guidance(ask.messages, self._agent.prompt if model.prompted else "")
        body = {
            NAME: self._policy.servers.name_of(adapter),
            "messages": self._policy.servers.readable(guided),
            "temperature": ask.temperature,
            "max_tokens": ask.most or self._most,
            **self._extra,
        }
        passed = {"tools": ask.tools, "stop": ask.stops, "seed": ask.seed}
        return body | {name: value for name, value in passed.items() if value not in (None, ())}

    async def _answer(self, body: dict[str, Any], adapter: str | None) -> httpx.Response:
        """The server's answer, not yet read. One that was restarted is given the adapter again."""
        asked = self._http.build_request("POST", self._url + CHAT, json=body)
        answer = await self._http.send(asked, stream=True)
        if answer.status_code != 404 or adapter is None:
            return answer
        await answer.aclose()
        try:
            async with self._one:
                await asyncio.to_thread(self._policy.servers.restore, 0, adapter)
        except (LLMError, UserError) as error:
            why = f"the server behind this one does not load {adapter} again: {error}"
            raise Refused(502, why) from error
        return await self._http.send(asked, stream=True)

    async def _said(self, answer: httpx.Response) -> dict[str, Any]:
        """The object in an answer. Raises Refused with the server's words, never with the key."""
        try:
            data = await decompressed(answer.headers, answer.aiter_raw())
            said = self._secret.clean_value(without_surrogates(read(data, BODY)))
        except Unreadable as error:
            raise _unusable(error) from error
        status = answer.status_code
        if status == 200 and isinstance(said, dict):
            return said
        refusal = said.get("error", said) if isinstance(said, dict) else said
        fields = refusal if isinstance(refusal, dict) else {"message": refusal}
        code = fields.get("code")
        raise Refused(
            status if status in (400, 413, 422, 429, 503) else 502,
            f"the server behind this one: {str(fields.get('message'))[:500]}",
            code=code if isinstance(code, str) else None,
        )

    def _events(self, data: bytes, texts: _Texts) -> list[Any]:
        """The events to pass on for one of a stream, without the key. Refused if it is no JSON."""
        try:
            said = without_surrogates(read(data, BODY))
        except Unreadable as error:
            raise _unusable(error) from error
        return [self._secret.clean_value(one) for one in texts.events(said)]

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


class _Texts:
    """The texts that grow over a stream's events, each held back where it may have begun with a
    piece of the key: an event holds only a part, which by itself shows nothing."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._held: dict[tuple[Any, ...], str] = {}  # by choice and place in its delta

    def events(self, said: Any) -> list[Any]:
        """What to pass on for one event: it, with its texts as far as they may be seen, after an
        event for each text that is let go because its choice has ended."""
        out = []
        for choice in _choices(said):
            number = choice.get("index")
            choice["delta"] = self._cleaned((number,), choice.get("delta"))
            if choice.get("finish_reason") is None:
                continue
            for place in [p for p in self._held if p[0] == number]:
                last: Any = self._held.pop(place)
                for step in reversed(place[1:]):
                    last = [{"index": step, **last}] if isinstance(step, int) else {step: last}
                one = {"index": number, "delta": last, "finish_reason": None}
                out.append({**said, "choices": [one]})
        return [*out, said]

    def _cleaned(self, place: tuple[Any, ...], value: Any) -> Any:
        if isinstance(value, dict):
            whole = ("role", "id", "type", "index")
            return {k: v if k in whole else self._cleaned((*place, k), v) for k, v in value.items()}
        if isinstance(value, list):
            numbers = [v.get("index", i) if isinstance(v, dict) else i for i, v in enumerate(value)]
            return [self._cleaned((*place, n), v) for n, v in zip(numbers, value, strict=True)]
        if not isinstance(value, str):
            return value
        clean, held = self._secret.split(self._held.pop(place, "") + value)
        if held:
            self._held[place] = held
        return clean


def _choices(said: Any) -> list[dict[str, Any]]:
    choices = said.get("choices") if isinstance(said, dict) else None
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


async def _lines(answer: httpx.Response, until: float) -> AsyncGenerator[bytes, None]:
    """The lines of a stream. They end at a line feed alone: JSON may hold the other characters that
    end lines elsewhere, such as U+2028. Raises TimeoutError at the loop's time `until`, and Refused
    for a line beyond `BODY.size`."""
    begun = bytearray()
    pieces = answer.aiter_raw()
    while True:
        async with asyncio.timeout_at(until):
            piece = await anext(pieces, None)
        if piece is None:
            break
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


def _unreachable(error: Exception) -> Refused:
    return Refused(502, f"the server behind this one does not answer ({type(error).__name__})")
