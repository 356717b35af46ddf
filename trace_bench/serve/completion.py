"""Answers in the shape of OpenAI's chat completions, whole or as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from trace_bench.core.types import Message

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Completion:
    """One answer. `prompt`, `completion`: tokens. `logprobs`: of each, in OpenAI's shape."""

    message: Message
    finish: str
    prompt: int
    completion: int
    logprobs: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class AnswerShape:
    """The constant parts of one answer's JSON."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Completion]) -> dict[str, Any]:
        choices = [
            {"index": i, "message": a.message, "finish_reason": a.finish, **_logprobs(a)}
            for i, a in enumerate(answers)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(answers)}

    def delta(self, index: int, **delta: Any) -> bytes:
        return self._event({"index": index, "delta": delta, "finish_reason": None})

    def last(self, index: int, answer: Completion) -> list[bytes]:
        """A choice's tool calls, log-probabilities and the reason of its end."""
        calls: Sequence[Mapping[str, Any]] = answer.message.get("tool_calls", ())
        end = {"index": index, "delta": {}, "finish_reason": answer.finish, **_logprobs(answer)}
        called = [self.delta(index, tool_calls=[{"index": i, **c}]) for i, c in enumerate(calls)]
        return [*called, self._event(end)]

    def end(self, answers: Sequence[Completion], with_usage: bool) -> list[bytes]:
        head = {**self._head("chat.completion.chunk"), "choices": []}
        used = [event({**head, "usage": usage(answers)})] if with_usage else []
        return [*used, DONE]

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _logprobs(answer: Completion) -> dict[str, Any]:
    return {} if answer.logprobs is None else {"logprobs": {"content": answer.logprobs}}


def usage(answers: Sequence[Completion]) -> dict[str, int]:
    """The tokens of the prompt, which all answers to a request share, and of the answers."""
    prompt, completion = answers[0].prompt, sum(a.completion for a in answers)
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
