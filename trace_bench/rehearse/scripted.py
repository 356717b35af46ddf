"""An OpenAI-compatible HTTP server whose answers a script writes, faults included."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """What the server does with a request. `reset` tears the connection, `delay` waits first,
    `trickle` sends a byte at a time with so many seconds between them, `cut` ends the body
    early."""

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
def serve(script: Script) -> Iterator[Server]:
    """A server on a free port of this machine, until the end of the block."""
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

    with Threads(("127.0.0.1", 0), Handler) as server:
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
