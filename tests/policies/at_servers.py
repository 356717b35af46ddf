"""Policies at servers, closed at the end of a block, and scripted servers of the model `m`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from servers.vllm_process import VARIABLE

from trace_bench.core.protocols import TurnReply, TurnRequest
from trace_bench.llm.client import Endpoint
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.rehearse.scripted import Answer, models, serve

NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter"),
]


def policy(*urls: str, capacity: int = 8, **settings: Any) -> closing[OpenAIPolicy]:
    settings = {"retries": 1, "pause": 0.01, "deadline": 5.0, **settings}
    return closing(OpenAIPolicy(Endpoint(urls, **settings), "m", capacity=capacity, extra=None))


def answering(*answers: Answer | Callable[[Any], Answer], owner: str = "scripted") -> Any:
    """A server that gives these answers to chats (or what they make of the question), the last one
    for ever."""
    left = list(answers)
    lock = threading.Lock()

    def script(path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/models":
            return models("m", owner=owner)
        with lock:
            answer = left.pop(0) if len(left) > 1 else left[0]
        return answer(body) if callable(answer) else answer

    return serve(script)


def one(acting: OpenAIPolicy, request: TurnRequest) -> TurnReply:
    acting.submit([request])
    (reply,) = acting.collect()
    return reply


def all_of(acting: OpenAIPolicy, requests: list[TurnRequest]) -> list[TurnReply]:
    acting.submit(requests)
    replies: list[TurnReply] = []
    while len(replies) < len(requests):
        replies += acting.collect()
    return replies
