"""The HTTP client against a real server that misbehaves on demand."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from trace_bench.core.errors import UserError
from trace_bench.llm.client import (
    LONGEST_PAUSE,
    Client,
    Endpoint,
    LLMError,
    check_extra,
    read_key,
)
from trace_bench.rehearse.scripted import Answer, Script, chat, serve

KEY = "sk-planted-1234567890"
BODY = {"model": "m", "messages": []}


def client(url: str, **settings: Any) -> closing[Client]:
    return closing(Client(Endpoint((url,), pause=0.01, **settings)))


def in_turn(*answers: Answer) -> Script:
    """These answers one after the other, the last one for ever."""
    left: Iterator[Answer] = itertools.chain(answers, itertools.repeat(answers[-1]))
    lock = threading.Lock()

    def script(path: str, body: dict[str, Any]) -> Answer:
        with lock:
            return next(left)

    return script


@pytest.mark.parametrize("start", [0, 290, 485, 495])
def test_no_part_of_the_key_comes_back(start: int) -> None:
    """Also where a server's long complaint is cut off in the middle of it, and in an answer that
    is a success by its status."""
    said = "x" * start + KEY
    script = in_turn(Answer({"error": said}), Answer(said, 400), Answer(said, 500))
    with serve(script) as server, client(server.url, key=KEY, retries=1) as asking:
        texts = [str(asking.ask("/chat/completions", BODY))]
        for _ in range(2):
            with pytest.raises(LLMError) as caught:
                asking.ask("/chat/completions", BODY)
            texts.append(str(caught.value))
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert not [text for text in (*texts, repr(asking.endpoint)) if KEY[:6] in text]


@pytest.mark.parametrize(
    "trouble",
    [
        Answer({"error": "busy"}, 429),
        Answer({"error": "broken"}, 500),
        Answer("<html>bad gateway</html>", 502),
        Answer(reset=True),
        Answer({"choices": "x" * 1000}, cut=True),
        Answer("{not json"),
        Answer('["no object"]'),
        Answer({}, delay=2.0),
        Answer({"never": "whole" * 20}, trickle=0.1),
    ],
    ids=["429", "500", "502", "reset", "cut", "no-json", "no-object", "slow", "trickle"],
)
def test_what_is_temporary_is_tried_again(trouble: Answer) -> None:
    script = in_turn(trouble, trouble, chat("at last"))
    with serve(script) as server, client(server.url, deadline=0.5) as asking:
        reply = asking.ask("/chat/completions", BODY)
    assert reply["choices"][0]["message"]["content"] == "at last"
    assert len(server.requests) == 3
    assert (asking.usage.requests, asking.usage.retries, asking.usage.failures) == (1, 2, 0)
    assert (asking.usage.prompt_tokens, asking.usage.completion_tokens) == (10, 2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_is_refused_is_not_tried_again(status: int) -> None:
    script, refused = in_turn(Answer({"error": "no"}, status)), pytest.raises(LLMError)
    with serve(script) as server, client(server.url) as asking, refused as caught:
        asking.ask("/chat/completions", BODY)
    assert f"HTTP {status}" in str(caught.value)
    assert caught.value.status == status and len(server.requests) == 1


def test_a_limit_of_tokens_goes_under_the_name_that_the_server_takes() -> None:
    bodies: list[dict[str, Any]] = []

    def script(path: str, body: dict[str, Any]) -> Answer:
        bodies.append(body)
        if "max_tokens" in body:
            return Answer({"error": "Unsupported: max_tokens. Use max_completion_tokens."}, 400)
        return chat("Hello") if "stop" not in body else Answer({"error": "stop"}, 400)

    with serve(script) as server, client(server.url) as asking:
        for _ in range(2):
            asking.ask("/chat/completions", {**BODY, "max_tokens": 7})
        with pytest.raises(LLMError, match="stop"):
            asking.ask("/chat/completions", {**BODY, "max_tokens": 7, "stop": "x"})
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 7, 7, 7]


def test_a_server_may_say_how_long_to_wait() -> None:
    busy = Answer({}, 429, {"Retry-After": "0.4"})
    with serve(in_turn(busy, chat("x"))) as server, client(server.url) as asking:
        began = time.monotonic()
        asking.ask("/chat/completions", BODY)
    assert time.monotonic() - began >= 0.4


def test_no_more_requests_at_once_than_allowed() -> None:
    now, most = 0, 0
    lock = threading.Lock()
    four = threading.Barrier(4, timeout=60)

    def script(path: str, body: dict[str, Any]) -> Answer:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        four.wait()
        with lock:
            now -= 1
        return chat("ok")

    with serve(script) as server, client(server.url, concurrency=4) as asking:
        for future in [asking.start("/chat/completions", BODY) for _ in range(40)]:
            future.result()
    assert most == 4


def test_a_server_that_comes_back_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """One that has answered. What never did, or does not come back in time, is an error."""
    path, last = "/chat/completions", replace(chat("one"), headers={"Connection": "close"})
    with serve(in_turn(last)) as server:
        endpoint = Endpoint((server.url,), pause=0.01, retries=1, patience=20.0)
        clients = [Client(endpoint) for _ in range(2)]
        waiting, never = map(closing, clients)
        assert clients[0].ask(path, BODY)["choices"]
    with never as asking, pytest.raises(LLMError, match="tried 2 times"):
        asking.ask(path, BODY)
    with waiting as asking:
        futures = [asking.start(path, BODY) for _ in range(2)]
        time.sleep(0.5)
        assert not any(future.done() for future in futures)
        with serve(in_turn(last), int(server.address.rpartition(":")[2])):
            assert all(future.result(20)["choices"] for future in futures)
        asking.endpoint = replace(asking.endpoint, patience=0.1)
        tries = []
        for _ in range(2):
            with pytest.raises(LLMError) as caught:
                asking.ask(path, BODY)
            tries.append(int(str(caught.value).split()[-2]))
        assert tries[0] > tries[1] == 2, "it is not waited for a second time"
        assert asking._pause(5000, None) <= 1.5 * LONGEST_PAUSE, "after days of waiting"
    said = f"{server.url} is gone and is waited for, at most"
    assert capsys.readouterr().err == f"{said} 20 s\n{said} 0.1 s\n"


def test_only_the_named_server_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a proxy from the environment nor the target of a redirect."""
    with serve(in_turn(chat("stolen"))) as other:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, other.url)
        away = Answer({}, 307, {"Location": f"{other.url}/chat/completions"})
        with serve(in_turn(chat("mine"), away)) as server, client(server.url) as asking:
            assert asking.ask("/chat/completions", BODY)["choices"]
            with pytest.raises(LLMError, match="HTTP 307"):
                asking.ask("/chat/completions", BODY)
        assert not other.requests


def test_fields_that_other_settings_decide_are_refused() -> None:
    assert check_extra({"top_k": 5}, "policy.extra") == {"top_k": 5}
    with pytest.raises(UserError, match=r"holds messages, seed, which other"):
        check_extra({"seed": 1, "messages": []}, "policy.extra")


def test_a_key_in_the_place_of_its_variable_is_not_repeated() -> None:
    with pytest.raises(UserError, match="not the name of an environment variable") as caught:
        read_key(KEY, "policy.key_env")
    assert KEY not in str(caught.value)
    with pytest.raises(UserError, match="the environment variable NO_SUCH_KEY is empty"):
        read_key("NO_SUCH_KEY", "llm.user.key_env")
    assert read_key(None, "policy.key_env") is None
