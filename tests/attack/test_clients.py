"""Clients and servers around `serve` that are slow, that lie, or that end too early: nobody else
waits for them, no place is held, and no key gets out."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from models import save_model
from raw import answering
from servers.agent import Served, local, serving

from trace_bench.core.types import AgentSpec
from trace_bench.llm.client import Client, Endpoint
from trace_bench.rehearse.scripted import models, serve
from trace_bench.serve.forward import Forward
from trace_bench.serve.request import ServeSettings

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-9f/Aq+Zr~7w"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
TYPED = HEAD + b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = save_model(tmp_path_factory.mktemp("model"))
    agent = AgentSpec(str(model))
    settings = ServeSettings(requests=4, patience=1.5, tokens=900)
    with serving(local(model, agent, batch=4), settings) as served:
        yield served


def ask(served: Served, timeout: float = 30, **fields: Any) -> httpx.Response:
    body = {"model": "agent", "messages": HELLO, "max_tokens": 2, **fields}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=timeout)


def connected(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=20)


def test_clients_that_are_slow_hold_no_place_and_are_cut_off(served: Served) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(served)) for _ in range(20)]
        for number, one in enumerate(slow):
            kind = b"Transfer-Encoding: chunked" if number % 2 else b"Content-Length: 500"
            one.sendall(TYPED + kind + b"\r\n\r\n" + (b"" if number % 2 else b"{"))
        assert ask(served).status_code == 200
        assert all(b" 408 " in one.recv(4096) for one in slow)


def test_a_client_that_does_not_read_frees_its_places(served: Served) -> None:
    body = {"model": "agent", "messages": HELLO, "max_tokens": 900, "stream": True}
    text = json.dumps(body | {"temperature": 1}).encode()
    with ExitStack() as stack:
        for _ in range(4):
            slow = stack.enter_context(socket.socket())
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
            slow.sendall(TYPED + b"Content-Length: %d\r\n\r\n" % len(text) + text)
        end = time.monotonic() + 40
        while ask(served).status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.2)


HEADERS = [
    ({"Host": "attacker.example:8800"}, 403),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "application/json; charset=utf-8"}, 200),
]


@pytest.mark.parametrize(("headers", "status"), HEADERS)
def test_a_browsers_page_is_kept_away(headers: dict[str, str], status: int, served: Served) -> None:
    body = json.dumps({"model": "agent", "messages": HELLO, "max_tokens": 2}).encode()
    sent = {"Content-Type": "application/json"} | headers
    url = f"{served.url}/v1/chat/completions"
    assert httpx.post(url, content=body, headers=sent, timeout=30).status_code == status


# -- servers behind `serve --backend` --------------------------------------------------------------


@contextmanager
def in_front_of(*sent: bytes, pause: float = 0.0, deadline: float = 3.0) -> Iterator[Served]:
    """Our server before one that answers a conversation with these bytes, one after the other."""
    with answering(*sent, pause=pause) as address:
        with serve(lambda path, body: models("m")) as ready:
            endpoint = Endpoint((ready.url,), KEY, retries=0, deadline=deadline)
            forward = Forward(endpoint, "m", AgentSpec("m"), 16, Path())
        forward._client.close()
        forward._client = Client(replace(endpoint, urls=(f"{address}/v1",)))
        with serving(forward, ServeSettings(requests=1)) as served:
            yield served


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def said(end: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": end}
    return f"data: {json.dumps({'model': 'm', 'choices': [choice]})}\n\n".encode()


def arguments(text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}


def texts(stream: str) -> tuple[str, str]:
    """(content, arguments) that a client puts together."""
    content = called = ""
    for event in stream.split("\n\n"):
        if not event.startswith("data: {"):
            continue
        for choice in json.loads(event[6:]).get("choices", ()):
            content += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                called += call["function"]["arguments"]
    return content, called


JSON = STREAM.replace(b"text/event-stream", b"application/json")


@pytest.mark.parametrize("coded", [KEY, KEY.encode().hex()])
def test_a_key_does_not_come_out_of_a_streamed_answer(coded: str) -> None:
    text = f"The key is {coded}, and sk-9 is not"
    calls = [{"id": "c0", "type": "function", **arguments(text)["tool_calls"][0]}]
    message = {"role": "assistant", "content": f"{text}: sk-9", "tool_calls": calls}
    whole = {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}
    with in_front_of(JSON, json.dumps(whole).encode()) as served:
        content, called = texts(ask(served, stream=True).text)
    assert content == "The key is ***, and sk-9 is not: sk-9"
    assert called == "The key is ***, and sk-9 is not"


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_drips_holds_no_place(stream: bool) -> None:
    head = STREAM if stream else STREAM.replace(b"text/event-stream", b"application/json")
    drops = [said(content="x")] * 200 if stream else [b" "] * 200
    with in_front_of(head, *drops, pause=0.1, deadline=1.0) as served:
        start = time.monotonic()
        answer = ask(served, stream=stream)
        assert time.monotonic() - start < 8
        assert "no answer within 1 s" in answer.text or "does not answer" in answer.text
        assert ask(served).status_code != 429


def test_an_answer_that_is_cut_is_an_error() -> None:
    with in_front_of(JSON, b'{"choices": [{"index": 0, "mess') as served:
        answer = ask(served, stream=True).text
    assert texts(answer) == ("", "") and "error" in answer and "[DONE]" not in answer
