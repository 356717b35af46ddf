"""Conversations arrive whole with each request. A request goes on with an earlier answer if all up
to that answer is as before; then the prompt only grows, by the tokens that were sampled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.core.protocols import Router, RoutesTurns
from trace_bench.core.store import canonical
from trace_bench.core.types import Message
from trace_bench.play.rollouts import with_guidance
from trace_bench.serve.request import ChatRequest

_ARGUMENTS = Limits(2**20)


def opening(ask: ChatRequest) -> tuple[Message, ...]:
    """The messages before the agent's first turn, by which the router decides."""
    roles = [m["role"] for m in ask.messages]
    return ask.messages[: roles.index("assistant")] if "assistant" in roles else ask.messages


def choose(router: Router, ask: ChatRequest, prompt: str) -> Any:
    """The router's choice for the next turn, under the agent's prompt: from the conversation's
    first messages, or from all of them if it chooses anew at every turn."""
    if isinstance(router, RoutesTurns) and _answered(ask):
        return router.next(with_guidance(ask.messages, prompt), ask.tools)
    return router.route(with_guidance(opening(ask), prompt), ask.tools)


def new_messages(ask: ChatRequest) -> tuple[Message, ...]:
    """The messages since the agent's last turn."""
    return ask.messages[_answered(ask) :]


def key_before(ask: ChatRequest) -> str | None:
    """The key of the conversation that the request goes on with; None if it is its first."""
    end = _answered(ask)
    return _key(ask, ask.messages[:end]) if end else None


def key_after(ask: ChatRequest, answer: Message) -> str:
    """The key of the conversation that ends with an answer to the request."""
    return _key(ask, [*ask.messages, answer])


def _answered(ask: ChatRequest) -> int:
    """How many messages there are up to the agent's last turn, this included."""
    places = [i for i, m in enumerate(ask.messages) if m["role"] == "assistant"]
    return places[-1] + 1 if places else 0


def _key(ask: ChatRequest, messages: Sequence[Message]) -> str:
    said = [ask.model, list(ask.tools), [_plain(m) for m in messages]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _plain(message: Message) -> list[Any]:
    """What of a message counts. Clients number calls anew, and write arguments in their own way."""
    content = message["content"]
    if message["role"] != "assistant":
        return [message["role"], content]
    calls = [c["function"] for c in message.get("tool_calls", ())]
    named = [[f["name"], _arguments(f["arguments"])] for f in calls]
    return ["assistant", content.strip(), named]


def _arguments(text: str) -> str:
    try:
        return canonical(read(text, _ARGUMENTS))
    except Unreadable:
        return text
