"""An answer in the shape of OpenAI's chat completions, whole or as server-sent events."""

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
    """One answer. `end`: OpenAI's reason of its end; `prompt`, `completion`: tokens; `adapter`:
    that has acted."""

    message: Message
    end: str
    prompt: int
    completion: int
    adapter: str | None

    @property
    def usage(self) -> dict[str, int]:
        total = self.prompt + self.completion
        counts = {"prompt_tokens": self.prompt, "completion_tokens": self.completion}
        return {**counts, "total_tokens": total}


@dataclass(frozen=True)
class AnswerShape:
    """The constant parts of one answer's JSON."""

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
