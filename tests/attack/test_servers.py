"""Servers that lie, flood or babble: each answer ends in a typed failure of that request, memory
stays bounded, and nothing is scored as the agent's."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from playing import play, with_tokens
from raw import answering
from toy import ToySuite

from trace_bench.core.errors import EpisodeError
from trace_bench.core.roles import RoleSettings
from trace_bench.core.types import AgentSpec, Boundary, StopReason
from trace_bench.llm.client import Client, Endpoint, LLMError
from trace_bench.llm.roles import Role, Roles
from trace_bench.policies.openai import OpenAIPolicy
from trace_bench.rehearse.scripted import Answer, models, serve

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


def served(answer: Answer, owner: str) -> Any:
    """A server that gives this answer to every chat."""
    return serve(lambda path, body: models("m", owner=owner) if "models" in path else answer)


def lost(endpoint: Endpoint) -> str:
    """Plays an episode of an agent there, which is lost for its policy's error; this error."""
    world, policy = ToySuite(), OpenAIPolicy(endpoint, "m", capacity=2, extra=None)
    (played,) = play(policy, world, AgentSpec("m"), world.tasks("train")[:1], [0])
    policy.close()
    assert played.stop is StopReason.ERROR and played.score is None and not played.turns
    assert played.failure is not None and played.failure.boundary is Boundary.POLICY
    assert 0 < len(played.failure.error) < 1000
    return played.failure.error


def said(message: Any) -> Answer:
    answer = with_tokens([1, 2], [3], [-0.5])
    answer.body["choices"][0]["message"] = message
    return answer


LIES = {
    "an id without end": (with_tokens([1, HUGE // 10**200], [3], [-0.5]), "not the id of a token"),
    "a sampled id out of range": (with_tokens([1, 2], [2**31], [-0.5]), "not the id of a token"),
    "text as ids": (with_tokens("one two", [3], [-0.5]), "str, not a list"),
    "285,000 ids": (with_tokens([7] * 285_000, [3], [-0.5]), "285000 token ids"),
    "more sampled than asked for": (with_tokens([1], [3] * 500, [-0.5] * 500), "at most"),
    "a log-probability above zero": (with_tokens([1, 2], [3], [0.5]), "log-probability"),
    "none": (with_tokens([1, 2], [3], [float("nan")]), "NaN"),
    "a message that is a list": (said([1]), "AttributeError"),
    "a message of 2 MB": (said({"content": "x" * 2_000_000}), "1048576 characters"),
    "a call that is a text": (said({"content": "", "tool_calls": ["f"]}), "AttributeError"),
}


@pytest.mark.parametrize(("answer", "why"), LIES.values(), ids=LIES)
def test_a_lie_is_a_failure_of_the_policy_in_that_episode(answer: Answer, why: str) -> None:
    with served(answer, "vllm") as server:
        assert why in lost(Endpoint((server.url,), retries=1, pause=0.01))


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
    with served(answer, "scripted") as server:
        endpoint = Endpoint((server.url,), retries=1, pause=0.01, deadline=20.0)
        lost(endpoint)
        role = Role(endpoint, RoleSettings(model="m", seed=0, max_tokens=64, context=1000, tries=1))
        roles = Roles({"user": role}, tmp_path / "llm.jsonl")
        with pytest.raises(EpisodeError) as caught:
            roles.ask("user", [{"role": "user", "content": "Hello?"}])
        roles.close()
    assert caught.value.boundary == Boundary.USER.value and 0 < len(str(caught.value)) < 1000
