"""An OpenAI-compatible HTTP server whose answers a script writes, faults included.

And a script that answers as a model in any role would, in the form that is asked for, of no value:
a rehearsal plays the roles with it (`Players`). An answer follows from the question alone, so that
a question that is asked again after a kill has the same answer."""

from __future__ import annotations

import hashlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trace_bench.core.chat import arguments_of
from trace_bench.core.types import Message


@dataclass
class Answer:
    """What the server does with a request. `reset` tears the connection, `delay` waits first,
    `trickle` sends a byte at a time with so many seconds between, `cut` ends the body early."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    trickle: float = 0.0
    reset: bool = False
    cut: bool = False


Script = Callable[[str, dict[str, Any]], Answer]
"""(path, request body; {} for GET) -> answer. Called from many threads."""


@dataclass
class Server:
    """`requests`: (path, body) of each so far, with their `headers`."""

    address: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.address}/v1"

    def bodies(self, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
        return [body for where, body in self.requests if where == path]


def chat(message: str | dict[str, Any], model: str = "scripted", **more: Any) -> Answer:
    """A chat completion: a text, or a whole message."""
    said = {"role": "assistant", "content": message} if isinstance(message, str) else message
    choice = {"index": 0, "message": said, "finish_reason": more.pop("finish", "stop")}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return Answer({"model": model, "choices": [choice | more.pop("choice", {})], "usage": usage})


def models(*names: str, owner: str = "scripted") -> Answer:
    return Answer({"data": [{"id": name, "owned_by": owner} for name in names]})


@contextmanager
def serve(script: Script, port: int = 0) -> Iterator[Server]:
    """A server on a port of this machine (0: a free one), until the end of the block."""
    seen = Server()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve({})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            self._serve(json.loads(self.rfile.read(length) or b"{}"))

        def _serve(self, body: dict[str, Any]) -> None:
            with lock:
                seen.requests.append((self.path, body))
                seen.headers.append(dict(self.headers))
            answer = script(self.path, body)
            time.sleep(answer.delay)
            if answer.reset:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self._hang_up()
                return
            raw = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            data = raw.encode()
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                for part in _parts(data[: len(data) // 2] if answer.cut else data, answer.trickle):
                    self.wfile.write(part)
                    self.wfile.flush()
                    time.sleep(answer.trickle)
            except OSError:  # the client has given up
                self.close_connection = True
            if answer.cut:
                self._hang_up()

        def _hang_up(self) -> None:
            """Closes the connection itself, which the files that read and write it keep open."""
            self.close_connection = True
            for part in (self.rfile, self.wfile, self.connection):
                part.close()

        def finish(self) -> None:
            if not self.wfile.closed:
                super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    class Threads(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that was killed, or a connection that was torn."""

    with Threads(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        seen.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


def _parts(data: bytes, trickle: float) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))] if trickle else [data]


STOP = "###STOP###"
"""With which simulated users end a conversation."""
_REPLIES = ("Hello, I would like some help, please.", "Yes, please go on.")
_SHOWN = re.compile(r"== (T\d+): (solved|failed)")
_CONTROL = re.compile(r"Item (\d+)\nquestion: Does the agent name the reference number")
_WORD = "it is as the script says"


def answer(role: str, body: Mapping[str, Any]) -> str:
    messages: Sequence[Message] = body["messages"]
    form = (body.get("response_format") or {}).get("json_schema") or {}
    question = str(messages[-1].get("content") or "")
    if role == "user":
        said = sum(m["role"] == "assistant" for m in messages)
        return _REPLIES[said] if said < len(_REPLIES) else f"Thank you. {STOP}"
    if (schema := form.get("schema")) is not None:
        digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
        text = "\n".join(str(m.get("content") or "") for m in messages)
        return json.dumps(_filled(schema, random.Random(digest), text))
    if listed := re.findall(r'^\{"name": .*\}$', question, re.MULTILINE):
        return f"```python\n{_module([json.loads(line) for line in listed])}```"
    return f"```\n{_REPLIES[1]}\n```"


class Players:
    """The script of models in roles, at /ROLE/v1. `asked`: requests of each role."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    def __call__(self, path: str, body: Mapping[str, Any]) -> Answer:
        role = path.split("/")[1]
        if path.endswith("/models"):
            return Answer({"data": []})
        self.asked[role] = self.asked.get(role, 0) + 1
        return chat(answer(role, body), body.get("model", role))


# -- answers that follow a schema -------------------------------------------------------------


def _filled(schema: Mapping[str, Any], rng: random.Random, question: str) -> Any:
    """A value of the schema. Labels say that the first capability lacks in every failed episode and
    the second in every other one; verdicts are by lot, and false for a control item."""
    fields: Mapping[str, Any] = schema.get("properties", {})
    if "labels" in fields:
        return {"labels": _labels(fields["labels"]["properties"], dict(_SHOWN.findall(question)))}
    if "verdicts" in fields:
        control = {int(n) for n in _CONTROL.findall(question)}
        count = fields["verdicts"]["minItems"]
        return {"verdicts": [_verdict(n, n not in control and rng.random() < 0.5)
                             for n in range(1, count + 1)]}  # fmt: skip
    return _value(schema, rng, [0])


def _labels(episodes: Mapping[str, Any], ends: Mapping[str, str]) -> dict[str, Any]:
    out = {}
    for name, schema in episodes.items():
        failed = ends.get(name) == "failed"
        lacking = (failed, failed and int(name[1:]) % 2 == 1)
        out[name] = {
            capability: "LACKING" if n < len(lacking) and lacking[n] else "PRESENT"
            for n, capability in enumerate(schema["properties"])
        }
    return out


def _verdict(number: int, met: bool) -> dict[str, Any]:
    flags = {"present": met, "met": met, "failed": not met, "answer": met}
    return {"item": number, "seen": _WORD, **flags}


def _value(schema: Mapping[str, Any], rng: random.Random, count: list[int]) -> Any:
    """`count`: how many texts there are so far, so that none stands twice."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return {k: _value(v, rng, count) for k, v in schema.get("properties", {}).items()}
        case "array":
            count_of = max(1, schema.get("minItems", 1))
            each = schema.get("prefixItems") or [schema.get("items", {})] * count_of
            return [_value(one, rng, count) for one in each]
        case "boolean":
            return True
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "null":
            return None
    count[0] += 1
    return f"skill_{count[0]}" if "pattern" in schema else f"{_WORD}, {count[0]}"


# -- an environment ---------------------------------------------------------------------------


def _module(tools: Sequence[Mapping[str, Any]]) -> str:
    """A training environment: one tool, to be called with the arguments that the user names. An
    agent that only talks earns up to 0.15, by what it says: so rollouts differ from the start."""
    simple = [t for t in tools if _free(_needed(t))]
    tool = min(simple or tools, key=lambda t: (len(_needed(t)), t["name"]))
    kinds = {
        name: {"enum": schema["enum"][0]} if "enum" in schema else schema.get("type", "string")
        for name, schema in _needed(tool).items()
    }
    names = sorted(arguments_of(tool.get("parameters")).schemas)
    return (
        "import json\nimport random\n\n"
        "from trace_bench.core.types import Score, Step, StopReason\n\n"
        f"TOOL = {tool['name']!r}\nKINDS = {kinds!r}\nALLOWED = {names!r}\n{_ENVIRONMENT}"
    )


def _needed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of the arguments that a call must have."""
    taken = arguments_of(tool.get("parameters"))
    return {name: taken.schemas[name] for name in taken.schemas if name in taken.required}


def _free(needed: Mapping[str, Any]) -> bool:
    """Whether an argument can be any text, which random calls do not meet, and all are simple."""
    texts = [s for s in needed.values() if s.get("type") == "string" and "enum" not in s]
    return bool(texts) and all(isinstance(s.get("type"), str) for s in needed.values())


_ENVIRONMENT = """
def make_task(seed):
    rng = random.Random(seed)
    draw = {"boolean": lambda: True, "integer": lambda: rng.randrange(100, 1000),
            "number": lambda: rng.randrange(100, 1000), "array": list, "object": dict}
    arguments = {name: kind["enum"] if isinstance(kind, dict)
             else draw.get(kind, lambda: f"item {rng.randrange(1000)} {rng.randrange(1000)}")()
             for name, kind in KINDS.items()}
    return {"arguments": arguments, "word": f"case {rng.randrange(1000)}"}


def reference(data):
    function = {"name": TOOL, "arguments": json.dumps(data["arguments"])}
    called = [{"id": "r0", "type": "function", "function": function}]
    return [{"role": "assistant", "content": "", "tool_calls": called},
            {"role": "assistant", "content": "It is done."}]


class Env:
    def reset(self, task):
        self.data, self.done = dict(task.data), False
        wanted = json.dumps(self.data["arguments"])
        return Step(({"role": "system", "content": "Use the tool."},
                     {"role": "user", "content": f"{self.data['word']}: {TOOL} {wanted}"}),
                    (TOOLS[TOOL],))

    def step(self, action):
        calls = action.get("tool_calls") or []
        if calls:
            return Step(tuple(self.answer(c) for c in calls))
        text = action.get("content") or ""
        reward = 1.0 if self.done and text else 0.15 * (sum(map(ord, text)) % 8) / 7
        score = Score(reward, reward == 1.0)
        return Step((), done=True, score=score, stop=StopReason.DONE)

    def answer(self, one):
        function = one.get("function") or {}
        said = self.act(function.get("name") or "", function.get("arguments"))
        return {"role": "tool", "tool_call_id": one.get("id") or "",
                "name": function.get("name") or "", "content": said}

    def act(self, name, arguments):
        try:
            said = json.loads(arguments or "")
        except ValueError:
            return "Error: the arguments are no JSON"
        if name != TOOL:
            return "Error: there is no such tool"
        if not isinstance(said, dict) or not set(KINDS) <= set(said) <= set(ALLOWED):
            return "Error: other arguments are needed"
        self.done = self.done or said == self.data["arguments"]
        return "OK"

    def close(self):
        pass
"""
