"""What a world outside sends is checked where it arrives, without any standard's own package."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import jsonschema
import pytest

from trace_bench.core.chat import make_call, text_message
from trace_bench.core.errors import EpisodeError
from trace_bench.core.types import Step, Task
from trace_bench.envs.openenv import LONGEST, Server, _shown
from trace_bench.envs.outside import Answer, Episode, Settings, answer_of, result_of, tool_of
from trace_bench.policies.scripted import plausible

A = {"properties": {"a": {"type": "string"}}}
THERE = {"$ref": "#/$defs/A", "$defs": {"A": A}}


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
        (lambda: tool_of("put", "", {"type": "string"}), "allowed: an object's schema"),
        (lambda: tool_of("put", "", [1]), "allowed: an object"),
        (lambda: tool_of("put", "", {**A, "required": ["x"]}), "which it does not describe"),
        (lambda: tool_of("put", "", {**A, "allOf": [{"required": ["x"]}]}), "'x'.*not describe"),
    ],
)
def test_what_lies_is_a_failure_of_the_environment(send: Callable[[], Any], says: str) -> None:
    with pytest.raises(EpisodeError, match=says) as caught:
        send()
    assert caught.value.boundary == "environment"


TEXT = {"type": "text", "text": "seen"}
LINK = {"type": "resource_link", "uri": "file:///b", "name": "b"}
BLOB = {"type": "resource", "resource": {"uri": "file:///c", "blob": "eA=="}}
FILE = {"type": "resource", "resource": {"uri": "file:///a", "text": "its text"}}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [TEXT, FILE, {"type": "image", "data": "x"}]}, "seen\nits text\n[image]"),
        ({"content": [TEXT], "structured_content": {"result": "seen"}}, "seen"),
        ({"content": [{"type": "text", "text": ""}], "structuredContent": {"result": ""}}, ""),
        ({"content": [], "structured_content": {"a": [1]}}, '{"a": [1]}'),
        ({"content": [TEXT], "is_error": True}, "Error: seen"),
        ({"content": [], "structuredContent": {"a": 1}, "isError": True}, 'Error: {"a": 1}'),
        ({"structuredContent": {"a": 1}}, '{"a": 1}'),
        ({"content": [LINK, BLOB]}, "[resource_link file:///b]\n[resource file:///c]"),
        ({"content": []}, ""),
    ],
)
def test_a_tools_answer_is_shown_whole(result: Any, text: str) -> None:
    assert answer_of(result_of(result)).text == text
    assert answer_of(_shown({"tool_name": "look", "result": result})).text == text


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"text": "Guess.", "metadata": {"task": "7"}}, "Guess."),
        ({"text": "", "metadata": {"message": "Buy."}}, "Buy."),
        ({"text": "Guess.", "left": 3, "metadata": {"task": "7"}}, '{"text": "Guess.", "left": 3}'),
        ({"left": 3}, '{"left": 3}'),
        ({}, ""),
        ({"tool_name": "look", "result": "seen"}, "seen"),
        ({"error": {"message": "no"}}, "Error: no"),
    ],
)
def test_an_observation_with_one_text_is_that_text(observation: Any, text: str) -> None:
    assert answer_of(_shown(observation)).text == text


class Echo(Episode):
    """A world whose one tool has the schema."""

    def __init__(self, schema: Any) -> None:
        super().__init__(Settings())
        self.schema = schema

    def begin(self, task: Task) -> Any:
        return Answer("Act."), [tool_of("act", "", self.schema)]

    def call(self, name: str, arguments: Any) -> Answer:
        return Answer("acted")

    def act(self, **arguments: Any) -> str:
        self.reset(Task("t", "e", "s", 0))
        answered: Step = self.step(make_call("act", **arguments))
        return str(answered.messages[0]["content"])


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"additionalProperties": {"type": "string"}},
        {**A, "additionalProperties": True},
        {**A, "patternProperties": {"^b": {}}},
        {**A, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {**A, "additionalProperties": False, "patternProperties": {"^b": {}}},
        {"required": ["b"]},
        {"allOf": [A, {"patternProperties": {"^b": {}}}]},
        {**A, "allOf": [{"properties": {"b": {}}}], "additionalProperties": False},
        {"$ref": "#/$defs/B", "$defs": {"B": {"properties": {"b": {}}, "required": ["b"]}}},
        {"oneOf": [A, {"properties": {"b": {}}, "required": ["b"]}], "required": ["b"]},
    ],
)
def test_arguments_that_a_schema_leaves_open_reach_the_world(schema: Any) -> None:
    assert Echo(schema).act(b="x") == "acted"


@pytest.mark.parametrize("schema", [A, {**A, "additionalProperties": False}, THERE, {"allOf": [A]}])
def test_arguments_that_it_does_not_know_are_an_error_for_the_agent(schema: Any) -> None:
    assert Echo(schema).act(b="x") == "ValueError: unknown argument 'b'; allowed: a"
    for needed in ({"required": ["a"]}, {"allOf": [{"required": ["a"]}, A]}):
        assert "the argument a is missing" in Echo({**schema, **needed}).act()


def test_an_episode_that_is_over_at_its_start_is_the_environments() -> None:
    class Over(Echo):
        def begin(self, task: Task) -> Any:
            return Answer("Act.", None, True), [tool_of("act", "", {})]

    with pytest.raises(EpisodeError, match="over at its start"):
        Over({}).reset(Task("t", "e", "s", 0))
    with pytest.raises(EpisodeError, match="reset first"):
        Over({}).step(text_message("Done."))


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
        time.sleep(2.0 * (self.path == "/huge"))  # it goes on after what is read of it

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    bad = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bad)
    bad.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=bad.serve_forever, args=[0.02], daemon=True).start()
    yield Server(f"http://127.0.0.1:{bad.server_port}", 1.0)
    bad.shutdown()
    bad.server_close()


@pytest.mark.parametrize("path", ["/away", "/huge", "/nan", "/text"])
def test_an_answer_that_cannot_be_used_is_a_failure(server: Server, path: str) -> None:
    with pytest.raises(EpisodeError, match=path) as caught:
        server.ask(path)
    assert "no answer within" not in str(caught.value)


def test_a_route_that_is_not_there_is_none(server: Server) -> None:
    assert server.ask("/none") is None and server.ask("/fine") == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/B", "$defs": {"B": {"properties": {"b": {}}, "required": ["b"]}}},
        {"properties": {"b": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "integer"}}},
        {"properties": {"b": {"oneOf": [{"const": 3}, {"type": "boolean"}]}}},
        {"properties": {"b": {"allOf": [{"enum": [1, 2]}]}}},
        {"allOf": [{"properties": {"b": {"properties": {"c": {"type": "null"}}}}}]},
        {
            "properties": {"b": {"$ref": "#/$defs/T"}},
            "$defs": {"T": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
        },
        {"properties": {"b": {"type": ["integer", "null"]}}, "required": ["b"]},
    ],
)
def test_what_a_random_agent_calls_fits_the_schema(schema: Any) -> None:
    seen = [plausible(schema, Random(seed)) for seed in range(20)]
    assert any("b" in one for one in seen)
    for one in seen:
        jsonschema.validate(one, {"type": "object", **schema})
