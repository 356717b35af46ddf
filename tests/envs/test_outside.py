"""What a world outside sends is checked where it arrives, without any standard's own package."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trace_bench.core.errors import EpisodeError
from trace_bench.envs.outside import answer_of, plain_name, tool_of
from trace_bench.envs.outside.web import LONGEST, Web


@pytest.mark.parametrize(
    ("send", "says"),
    [
        (lambda: answer_of("fine", "0.5"), "reward is '0.5'; allowed: a finite number"),
        (lambda: answer_of("fine", float("nan")), "reward is nan"),
        (lambda: answer_of("fine", 10**400), "reward is"),
        (lambda: answer_of("fine", 1.0, "yes"), "says 'yes' where true or false is due"),
        (lambda: answer_of("x" * (2**20 + 1)), "more than 1048576 characters"),
        (lambda: answer_of({1: 2}), "a key is no text but int"),
        (lambda: tool_of("two words", "", {}), "a tool is called 'two words'"),
        (lambda: tool_of("put", "", {"type": "string"}), "of type string; allowed: an object"),
        (lambda: tool_of("put", "", [1]), "allowed: an object"),
        (lambda: tool_of("put", "", {"properties": []}), "allowed: an object"),
        (lambda: tool_of("put", "", {"required": ["x"]}), "which it does not describe"),
    ],
)
def test_what_lies_is_a_failure_of_the_environment(send: Callable[[], Any], says: str) -> None:
    with pytest.raises(EpisodeError, match=says) as caught:
        send()
    assert caught.value.boundary == "environment"


def test_what_is_fine_passes() -> None:
    answer = answer_of({"a": 1}, True, False)
    assert (answer.text, answer.reward, answer.over) == ('{"a": 1}', 1.0, False)
    made = tool_of("put", None, {})["function"]
    assert made["parameters"] == {"type": "object", "properties": {}, "required": []}
    assert plain_name("A shop/of 1", "x") == "A-shop-of-1" and plain_name("../", "x") == "x"


class Bad(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(307)
            self.send_header("Location", "/other")
            self.end_headers()
            return
        self.send_response(200 if self.path != "/none" else 404)
        self.end_headers()
        bodies = {"/huge": b'"' + b"x" * LONGEST.size + b'"', "/nan": b"[NaN]", "/text": b"hello"}
        self.wfile.write(bodies.get(self.path, b"{}"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        bodies = {"/cut": b"event: chunk\ndata: 1\n\n", "/error": b"event: error\ndata: no\n\n"}
        good = b"event: task_id\ndata: me\n\nevent: chunk\ndata: [1\n\nevent: end\ndata: ]\n\n"
        self.wfile.write(bodies.get(self.path, good))

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def web() -> Iterator[Web]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bad)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Web(f"http://127.0.0.1:{server.server_port}", 10.0)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["/away", "/huge", "/nan", "/text"])
def test_an_answer_that_cannot_be_used_is_a_failure(web: Web, path: str) -> None:
    with pytest.raises(EpisodeError, match=path):
        web.ask(path)


def test_routes_that_are_not_there_and_streams(web: Web) -> None:
    assert web.ask("/none") is None and web.ask("/fine") == {}
    streamed = web.stream("/fine", {}, {})
    assert streamed == ("me", [1])
    for path, says in (("/cut", "ended in the middle"), ("/error", "/error: no")):
        with pytest.raises(EpisodeError, match=says):
            web.stream(path, {}, {})
