"""Servers that lie, flood or babble: each answer ends in a typed failure of that request, memory
stays bounded, and nothing is scored as the agent's."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from playing import play
from raw import answering
from toy import ToySuite

from trace_bench.core.errors import EpisodeError
from trace_bench.core.roles import RoleSettings
from trace_bench.core.types import AgentSpec, Boundary, StopReason
from trace_bench.llm.client import Client, Endpoint, LLMError
from trace_bench.llm.roles import Role, Roles
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.rehearse.scripted import Answer, chat, models, serve

BODY = {"model": "m", "messages": []}
HUGE = 10**400


def asked(url: str) -> Any:
    client = Client(Endpoint((url,), retries=1, pause=0.01, deadline=20.0))
    try:
        return client.ask("/x", BODY)
    finally:
        client.close()


BODIES = {
    "what is packed": ("Content-Encoding: gzip\r\n", gzip.compress(b'{"a": 1}'), "compressed"),
    "a strange encoding": ("Content-Encoding: ../br\r\n", b"x", "compressed"),
    "an answer without end": ("", b" " * (2**24 + 1), "longer than"),
    "bytes that are no text": ("", b'{"a": "\xff\xfe"}', "not UTF-8"),
    "a number without end": ("", f'{{"a": {HUGE}}}'.encode(), "too large"),
    "NaN": ("", b'{"a": NaN}', "NaN"),
    "950 lists": ("", b'{"a": ' + b"[" * 950 + b"]" * 950 + b"}", "nested"),
    "three million elements": ("", b'{"a": [' + b"0," * 3_000_000 + b"0]}", "elements"),
    "half an object": ("", b'{"a": ', "no JSON object"),
}


@pytest.mark.parametrize(("headers", "content", "why"), BODIES.values(), ids=BODIES)
def test_an_answer_is_a_value_or_a_typed_error(headers: str, content: bytes, why: str) -> None:
    length = len(content) + (len(content) > 2**24)  # the longest never ends
    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n"
    pause = 30.0 if length > len(content) else 0.0
    with answering(head.encode() + content, pause=pause) as url, pytest.raises(LLMError) as caught:
        asked(url)
    assert why in str(caught.value) and len(str(caught.value)) < 1000


# -- a vLLM that lies about its tokens ------------------------------------------------------------


def claimed(prompt: Any, sampled: Any, logprobs: Any) -> Answer:
    content = [{"token": "x", "logprob": value} for value in logprobs]
    answer = chat("Hm.", "m", choice={"token_ids": sampled, "logprobs": {"content": content}})
    answer.body["prompt_token_ids"] = prompt
    return answer


def said(message: Any) -> Answer:
    answer = claimed([1, 2], [3], [-0.5])
    answer.body["choices"][0]["message"] = message
    return answer


LIES = {
    "an id without end": (claimed([1, HUGE // 10**200], [3], [-0.5]), "not the id of a token"),
    "a sampled id out of range": (claimed([1, 2], [2**31], [-0.5]), "not the id of a token"),
    "text as ids": (claimed("one two", [3], [-0.5]), "str, not a list"),
    "285,000 ids": (claimed([7] * 285_000, [3], [-0.5]), "285000 token ids"),
    "more sampled than asked for": (claimed([1], [3] * 500, [-0.5] * 500), "at most"),
    "a log-probability above zero": (claimed([1, 2], [3], [0.5]), "log-probability"),
    "none": (claimed([1, 2], [3], [float("nan")]), "NaN"),
    "a message that is a list": (said([1]), "AttributeError"),
    "a message of 2 MB": (said({"content": "x" * 2_000_000}), "1048576 characters"),
    "a call that is a text": (said({"content": "", "tool_calls": ["f"]}), "AttributeError"),
}


@pytest.mark.parametrize(("answer", "why"), LIES.values(), ids=LIES)
def test_a_lie_is_a_failure_of_the_policy_in_that_episode(answer: Answer, why: str) -> None:
    world = ToySuite()

    def script(path: str, body: dict[str, Any]) -> Answer:
        return models("m", owner="vllm") if path == "/v1/models" else answer

    with serve(script) as server:
        endpoint = Endpoint((server.url,), retries=1, pause=0.01)
        policy = OpenAIPolicy(endpoint, "m", capacity=2, extra=None)
        (played,) = play(policy, world, AgentSpec("m"), world.tasks("train")[:1], [0])
        policy.close()
    assert played.stop is StopReason.ERROR and played.score is None and not played.turns
    assert played.failure is not None and played.failure.boundary is Boundary.POLICY
    assert why in played.failure.error and len(played.failure.error) < 1000


# -- servers that fail, against the policy and a model in a role ----------------------------------


FAULTS = {
    "no choices": Answer({"choices": []}),
    "choices that are a text": Answer({"choices": "one"}),
    "a message of null": Answer({"choices": [{"message": None}]}),
    "an error in its place": Answer({"error": {"message": "busy"}}),
    "401": Answer({"error": "who are you?"}, 401),
    "404 as HTML": Answer("<html>not here</html>", 404),
    "500 without a body": Answer("", 500),
    "a redirect": Answer("", 302, {"Location": "http://127.0.0.1:1/elsewhere"}),
    "a torn connection": Answer(reset=True),
}


@pytest.mark.parametrize("answer", FAULTS.values(), ids=FAULTS)
def test_a_failing_server_fails_the_policy_or_the_user(answer: Answer, tmp_path: Path) -> None:
    def script(path: str, body: dict[str, Any]) -> Answer:
        return models("m") if path == "/v1/models" else answer

    world = ToySuite()
    with serve(script) as server:
        endpoint = Endpoint((server.url,), retries=1, pause=0.01, deadline=20.0)
        policy = OpenAIPolicy(endpoint, "m", capacity=2, extra=None)
        (lost,) = play(policy, world, AgentSpec("m"), world.tasks("train")[:1], [0])
        policy.close()
        role = Role(endpoint, RoleSettings(model="m", seed=0, max_tokens=64, context=1000, tries=1))
        roles = Roles({"user": role}, tmp_path / "llm.jsonl")
        with pytest.raises(EpisodeError) as caught:
            roles.ask("user", [{"role": "user", "content": "Hello?"}])
        roles.close()
    assert lost.stop is StopReason.ERROR and lost.score is None
    assert lost.failure is not None and lost.failure.boundary is Boundary.POLICY
    assert 0 < len(lost.failure.error) < 1000
    assert caught.value.boundary == Boundary.USER.value and 0 < len(str(caught.value)) < 1000
