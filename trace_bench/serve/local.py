"""Answers by this process's own engine: requests are prepared here, beside the engine's thread. And
the base model's hidden states, as OpenAI's embeddings (`States`)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Container
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.answer import (
    AnswerShape,
    BadSchema,
    Completion,
    Guide,
    Guides,
    Hold,
    sayable,
)
from trace_bench.serve.engine import Event, LocalEngine, Ticket, full
from trace_bench.serve.request import ChatRequest, Model, Refused, Text


class Local:
    """`app.Answerer`: the engine of this process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def whole(self, ask: ChatRequest, model: Model, note: dict[str, Any]) -> dict[str, Any]:
        answers: dict[int, Completion] = {}
        async with aclosing(self._ask(ask, model, note)) as events:
            async for index, event in events:
                if isinstance(event, Completion):
                    answers[index] = event
        return AnswerShape(ask.model).whole([answers[i] for i in range(ask.n)])

    async def events(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        shape = AnswerShape(ask.model)
        said: dict[int, str] = {}
        answers: list[Completion] = []
        async with aclosing(self._ask(ask, model, note)) as found:
            async for index, event in found:
                if index not in said:
                    said[index] = ""
                    yield shape.delta(index, role="assistant", content="")
                last = event if isinstance(event, Completion) else None
                text = last.message["content"] if last else sayable(str(event), ask.stops)
                if len(text) > len(said[index]):
                    yield shape.delta(index, content=text[len(said[index]) :])
                    said[index] = text
                if last:
                    answers.append(last)
                    for data in shape.last(index, last):
                        yield data
        for data in shape.end(answers, ask.stream_options.include_usage):
            yield data

    def health(self) -> dict[str, Any]:
        return {"status": "broken" if self._engine.broken else "ok", **self._engine.load}

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)

    async def _ask(
        self, ask: ChatRequest, model: Model, note: dict[str, Any]
    ) -> AsyncGenerator[tuple[int, str | Completion], None]:
        """Events, each with the number of its choice, whose last event is its answer."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[Ticket, Event]] = asyncio.Queue()

        def deliver(ticket: Ticket, event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, (ticket, event))

        holds, unread = await asyncio.to_thread(self._prepared, ask, model)
        left = [Ticket(ask, model, i, hold, unread, deliver) for i, hold in enumerate(holds)]
        for ticket in left:
            self._engine.start(ticket)
        try:
            while left:
                ticket, event = await events.get()
                note["adapter"] = ticket.adapter
                if not isinstance(event, str):
                    left.remove(ticket)
                if isinstance(event, Refused):
                    raise event
                if isinstance(event, Completion):
                    note["prompt"] = event.prompt
                    note["completion"] = note.get("completion", 0) + event.completion
                yield ticket.index, event
        finally:
            for ticket in left:
                self._engine.cancel(ticket)

    def _prepared(self, ask: ChatRequest, model: Model) -> tuple[list[Hold | None], Refused | None]:
        """What holds each answer, and why the conversation cannot be read from its beginning, if it
        cannot; what is read stays in the chat's cache, for the engine. Raises Refused."""
        policy = self._engine.policy
        if ask.top_logprobs:
            raise Refused(400, "top_logprobs can only be 0 here", param="top_logprobs")
        texts = sum(len(m["content"]) for m in ask.messages)
        if texts > policy.context * policy.chat.longest:
            raise full()
        held = ask.schema is not None or ask.callable or ask.stops or ask.top_p < 1
        holds = [Hold(ask, policy.chat, self._grammar(ask)) if held else None for _ in range(ask.n)]
        try:
            tokens = len(policy.chat.first(self._engine.guided(ask, model), ask.tools))
        except Exception as error:  # templates may raise any exception
            text = f"the model cannot read this conversation: {error.__cause__ or error}"
            return holds, Refused(400, text, param="messages")
        return holds, full() if tokens >= policy.context else None

    @functools.cached_property
    def _guides(self) -> Guides:
        return Guides(self._engine.policy.chat, self._engine.policy.vocab)

    def _grammar(self, ask: ChatRequest) -> Guide | None:
        """The form of the answer, if it has one. Raises Refused."""
        where = "tool_choice" if ask.callable else "response_format"
        if ask.schema is not None and ask.tools:
            text = "response_format cannot be combined with tools here: the answer is one or a call"
            raise Refused(400, text, param=where)
        try:
            if ask.callable:
                return self._guides.call([t["function"] for t in ask.callable])
            return None if ask.schema is None else self._guides.guide(ask.schema)
        except BadSchema as error:
            text = f"{where}: this schema cannot be used: {error}"
            raise Refused(400, text, param=where) from error
        except UserError as error:
            raise Refused(400, str(error), param=where) from error


@dataclass(frozen=True)
class _Asked:
    """`input`: token ids, or a list of prompts that each are."""

    model: Text
    input: list[int | list[int]]
    encoding_format: Literal["float"] = "float"
    use_activation: Literal[False] = False  # vLLM's name for normalizing


class States:
    """Shows the final hidden state at the last token of each prompt, given as token ids, not
    normalized. A policy at servers routes by them (`policy.states_url`); vLLM's pooling runner
    answers the same request. Callable from any thread."""

    def __init__(self, policy: LocalPolicy) -> None:
        self._policy = policy

    @property
    def context(self) -> int:
        return self._policy.context

    def answer(self, body: bytes, most: int, models: Container[str]) -> dict[str, Any]:
        """The response to a body of at most `most` bytes for one of `models`. Raises Refused."""
        try:
            ask = convert(read(body, Limits(most)), _Asked)
        except Unreadable as error:
            raise Refused(400, f"the body is no request for states: {error}") from error
        if ask.model not in models:
            text = f"the model {ask.model[:80]!r} does not exist"
            raise Refused(404, text, param="model", code="model_not_found")
        prompts = [p for p in ask.input if isinstance(p, list)]
        if not prompts:
            prompts = [[i for i in ask.input if isinstance(i, int)]]
        elif len(prompts) < len(ask.input):
            raise Refused(400, "input mixes token ids and prompts", param="input")
        for ids in prompts:
            if not 0 < len(ids) <= self.context:
                text = f"a prompt has {len(ids)} tokens; allowed: 1 to {self.context}"
                raise Refused(400, text, param="input", code="context_length_exceeded")
            if min(ids) < 0 or max(ids) >= self._policy.vocab:
                text = f"a token id is not in 0 to {self._policy.vocab - 1}"
                raise Refused(400, text, param="input")
        states = self._policy.states_of([tuple(p) for p in prompts])
        data = [
            {"object": "embedding", "index": i, "embedding": list(state)}
            for i, state in enumerate(states)
        ]
        count = sum(map(len, prompts))
        usage = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
        return {"object": "list", "model": ask.model, "data": data, "usage": usage}
