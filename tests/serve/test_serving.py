"""Serving over real HTTP with a small random model: what clients get, and what they are refused."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from models import save_adapter, save_model
from servers.agent import Served, local, routed_agent, serving

from trace_bench.core.beginning import read_agent
from trace_bench.core.protocols import TurnRequest
from trace_bench.core.types import AgentSpec
from trace_bench.policies.chat import Chat
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.__main__ import main
from trace_bench.serve.request import ServeSettings

Said = pytest.CaptureFixture[str]
JSON = {"Content-Type": "application/json"}
HELLO = [{"role": "user", "content": "send a message"}]
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, two adapters, and an agent that routes between them."""
    place = tmp_path_factory.mktemp("agent")
    model = save_model(place / "model")
    adapters = {n: save_adapter(model, place / n, seed) for seed, n in enumerate(("a", "b"), 1)}
    routed_agent(place, model, adapters)
    return place


@pytest.fixture(scope="module")
def agent(place: Path) -> AgentSpec:
    return read_agent(place / "agent.json")


@pytest.fixture(scope="module")
def served(place: Path, agent: AgentSpec) -> Iterator[Served]:
    settings = ServeSettings(tokens=64, body=20_000, requests=70)
    with serving(local(place / "model", agent, batch=4), settings) as served:
        yield served


def ask(served: Served, messages: Any = HELLO, key: str = "", **fields: Any) -> httpx.Response:
    body = {"model": "agent", "messages": messages, "temperature": 0, "max_tokens": 8, **fields}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--tokens 0", "--tokens 0 is not allowed"),
        ("--batch 0", "Set --batch."),
        ("--model /nowhere", "there is no such folder. Change --model."),
        ("--backend http://127.0.0.1:9/v1", "change its address (--backend)."),
    ],
)
def test_errors_name_its_own_options(place: Path, words: str, said: str, capsys: Said) -> None:
    assert main([str(place), *words.split()]) == 2
    told = capsys.readouterr().err
    assert said in told and "policy." not in told


def test_a_port_in_use_is_refused_before_the_model_loads(place: Path, capsys: Said) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(place), "--port", str(port), "--model", "/nowhere"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: --port {port}: Address already in use")
    assert "Change --port" in told


def said(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


def alone(place: Path, agent: AgentSpec, adapter: str | None, messages: list[Any]) -> str:
    """What the policy itself says, greedily."""
    policy = LocalPolicy(place / "model", batch=1, threads=1)
    policy.load(agent)
    policy.submit([TurnRequest(1, tuple(messages), (), adapter, 0, 0.0, 8)])
    (reply,) = policy.collect()
    assert reply.turn is not None
    return str(reply.turn.reply["content"]).strip()


def test_the_agent_answers_with_its_prompt_and_the_adapter_of_the_conversation(
    place: Path, agent: AgentSpec, served: Served
) -> None:
    assert [m["id"] for m in httpx.get(f"{served.url}/v1/models").json()["data"]] == ["agent"]
    answers = []
    for text, adapter in (("send a message", "a@0001"), ("remind me", "b@0001"), ("hm", None)):
        talk = [{"role": "user", "content": text}]
        answers.append(said(ask(served, talk))["content"])
        guided = [{"role": "system", "content": "Guidance: Be brief."}, *talk]
        assert answers[-1] == alone(place, agent, adapter, guided)
    assert len(set(answers)) == 3


def test_a_conversation_comes_whole_with_each_request(served: Served) -> None:
    first = ask(served, max_tokens=6)
    second = ask(served, [*HELLO, said(first), {"role": "user", "content": "and then?"}])
    used = [r.json()["usage"] for r in (first, second)]
    assert used[1]["prompt_tokens"] > used[0]["total_tokens"]


def test_a_stream_says_what_the_whole_answer_says(served: Served) -> None:
    whole = ask(served, max_tokens=24).json()
    body = {"model": "agent", "messages": HELLO, "temperature": 0, "max_tokens": 24}
    more = {"stream": True, "stream_options": {"include_usage": True}}
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**body, **more}, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
    text = "".join(d.get("content", "") for d in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert len([d for d in deltas if d.get("content")]) > 1, "it comes in one piece"
    assert events[-1]["usage"] == whole["usage"]
    assert [e["choices"][0]["finish_reason"] for e in events if e["choices"]][-1] == "length"


def test_many_requests_in_flight_and_none_is_lost(served: Served) -> None:
    """More than three places for each, so that most of them wait."""

    async def all_at_once() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(limits=limits, timeout=120) as client:
            bodies = [
                {"model": "agent", "messages": [{"role": "user", "content": f"message {i}"}],
                 "max_tokens": 4, "seed": i}
                for i in range(60)
            ]  # fmt: skip
            url = f"{served.url}/v1/chat/completions"
            return await asyncio.gather(*(client.post(url, json=b) for b in bodies))

    answers = asyncio.run(all_at_once())
    assert [a.status_code for a in answers] == [200] * 60
    assert all(1 <= a.json()["usage"]["completion_tokens"] <= 4 for a in answers)
    assert not served.backend.engine._open  # type: ignore[attr-defined]


def settled(served: Served, running: int) -> None:
    """Waits until so many turns are open."""
    end = time.monotonic() + 20
    while len(served.backend.engine._open) != running:  # type: ignore[attr-defined]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def endless(place: Path) -> Iterator[Served]:
    """A server with one place, whose model never ends its turn by itself."""
    agent = AgentSpec(str(place / "model"))
    backend = local(place / "model", agent, batch=1)
    policy = backend.engine.policy
    policy.chat.stop = policy._engine.stop = -1
    with serving(backend, ServeSettings(requests=1, tokens=900)) as served:
        yield served


@contextmanager
def asked_by_one_that_goes(served: Served, **fields: Any) -> Iterator[None]:
    """Within the block a client waits for its answer."""
    text = json.dumps({"model": "agent", "messages": HELLO, "max_tokens": 900} | fields).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as client:
        client.sendall(head.encode() + text)
        yield


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_place(stream: bool, endless: Served) -> None:
    with asked_by_one_that_goes(endless, stream=stream):
        settled(endless, 1)
        refused = ask(endless)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    settled(endless, 0)
    answer = ask(endless, max_tokens=3)
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert any(line.startswith("chat 499") for line in endless.lines)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "other"}, 404, "there is: agent"),
        ({"messages": []}, 400, "`messages` is []"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "one must be the user's"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "`messages[0].role` is 'robot'"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "x"}]}, 400, "last message"),
        ({"messages": [IMAGE]}, 400, "`messages[0].content[0].type` is 'image_url'"),
        ({"messages": [{"role": "user", "content": "x" * 1100}]}, 400, "context length"),
        ({"messages": [{"role": "user", "content": "x" * 21_000}]}, 413, "longer than 20000"),
        ({"max_tokens": 65}, 400, "1 to 64"),
        ({"max_tokens": True}, 400, "`max_tokens` is True"),
        ({"temperature": 3}, 400, "allowed: a number from 0 to 2"),
        ({"n": 2}, 400, "`n` is no key here"),
        ({"top_p": 0.9}, 400, "`top_p` is 0.9"),
        ({"tool_choice": "required"}, 400, "`tool_choice` is 'required'; allowed: auto, none"),
        ({"stream": "yes"}, 400, "`stream` is 'yes'; allowed: true or false"),
        ({"tools": [{"name": "f"}]}, 400, "`tools[0].function` is missing"),
        ({"stop": [""]}, 400, "`stop[0]`"),
        ({"seed": 2**64}, 400, "`seed`"),
    ],
)
def test_a_bad_request_is_refused_in_words(
    change: dict[str, Any], status: int, words: str, served: Served
) -> None:
    answer = ask(served, **{"stream": len(words) % 2 == 0, **change})
    error = answer.json()["error"]
    assert (answer.status_code, error.keys()) == (status, {"message", "type", "param", "code"})
    assert words in error["message"]


def test_what_is_no_request_is_refused(served: Served) -> None:
    url = f"{served.url}/v1/chat/completions"
    for body in (b"", b"{", b"[1]", b"\xff", b'{"model": NaN}', b"[" * 5000):
        assert httpx.post(url, content=body, headers=JSON).status_code == 400
    half = {"model": "agent", "max_tokens": 2, "messages": [{"role": "user", "content": "\ud800"}]}
    answer = httpx.post(url, content=json.dumps(half), headers=JSON, timeout=60)
    assert answer.status_code == 200
    assert httpx.get(url).status_code == 405
    assert httpx.get(f"{served.url}/v1/embeddings").status_code == 404


def test_with_a_key_only_its_owner_is_answered(place: Path, agent: AgentSpec) -> None:
    backend = local(place / "model", agent, batch=2)
    with serving(backend, key="s3cret") as served:
        assert ask(served).status_code == 401
        assert httpx.get(f"{served.url}/v1/models").status_code == 401
        assert ask(served, key="s3cret", max_tokens=2).status_code == 200
    assert not any("s3cret" in line or "send" in line for line in served.lines)
    assert "model 'agent', 1 messages, adapter a@0001" in served.lines[-1]


def test_a_text_that_ends_the_answer_is_not_in_it(served: Served) -> None:
    whole = said(ask(served, max_tokens=40))["content"]
    stop = whole[9:12]
    stops = [stop, "never said at all"]
    answer = ask(served, max_tokens=40, stop=stop).json()
    expected = whole[: whole.find(stop)]
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 40
    events = ask(served, max_tokens=40, stop=stops, stream=True).text.split("\n\n")[:-2]
    deltas = [json.loads(e[6:])["choices"][0]["delta"].get("content", "") for e in events]
    assert "".join(deltas) == expected


def test_a_partial_text_holds_back_what_may_still_change(place: Path) -> None:
    chat: Chat = LocalPolicy(place / "model", batch=1).chat
    ids = chat.encode(" It is é <tool_call>\n{}")
    seen = [chat.partial(ids[:n]) for n in range(len(ids) + 1)]
    assert seen[-1] == "It is é"
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))
    text = "a <tool"
    assert chat.partial(chat.encode(text)) == "a"
