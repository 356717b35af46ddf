"""Answers in the shape of OpenAI's chat completions, whole or as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from trace_bench.core.types import Message, Turn
from trace_bench.serve.request import Refused

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Completion:
    """One answer. `prompt`, `completion`: tokens."""

    message: Message
    finish: str
    prompt: int
    completion: int


def answer_of(turn: Turn, before: int) -> Completion:
    """The answer in a turn. `before`: tokens of the conversation before it. Calls get ids of their
    own: a conversation may hold others already."""
    message: Message = {**turn.reply, "content": turn.reply["content"].strip()}
    finish = "length" if turn.truncated else "stop"
    if message.get("tool_calls"):
        message["tool_calls"] = [{**c, "id": f"call_{uuid4().hex}"} for c in message["tool_calls"]]
        finish = "tool_calls"
    return Completion(message, finish, before, len(turn.token_ids))


@dataclass(frozen=True)
class Shape:
    """The constant parts of one answer's JSON."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answer: Completion) -> dict[str, Any]:
        choice = {"index": 0, "message": answer.message, "finish_reason": answer.finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(answer)}

    def first(self) -> bytes:
        return self._event({"role": "assistant", "content": ""})

    def text(self, delta: str) -> bytes:
        return self._event({"content": delta})

    def last(self, answer: Completion, with_usage: bool) -> list[bytes]:
        """Tool calls, the reason of the end, the usage if asked for, and the mark of the end."""
        calls: Sequence[Mapping[str, Any]] = answer.message.get("tool_calls", ())
        events = [self._event({"tool_calls": [{"index": i, **c}]}) for i, c in enumerate(calls)]
        events.append(self._event({}, answer.finish))
        if with_usage:
            head = self._head("chat.completion.chunk")
            events.append(event({**head, "choices": [], "usage": usage(answer)}))
        return [*events, DONE]

    def _event(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def usage(answer: Completion) -> dict[str, int]:
    total = answer.prompt + answer.completion
    return {
        "prompt_tokens": answer.prompt,
        "completion_tokens": answer.completion,
        "total_tokens": total,
    }


def error_body(error: Refused) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    said = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return {"error": said}


def error_event(error: Refused) -> bytes:
    """An error in a stream that has begun."""
    return event(error_body(error))


def event(value: Any) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(value)}\n\n".encode()
