"""A Docker engine whose answers a test writes, faults included: HTTP on a Unix socket."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

STALLS, CLOSES = "stalls", "closes"
HTML = (
    200,
    "text/html",
    b"<html><body>" + b"<p>Welcome to the proxy!</p>" * 50 + b"</body></html>",
)
FAILS = (500, "application/json", b'{"message": "the disk is on fire"}')

Reply = str | tuple[int, str, bytes]
"""`STALLS`, `CLOSES`, or (status, content type, body)."""


def well(method: str, path: str) -> Reply:
    """The answers of an engine with no containers, which makes one that never starts."""
    answers: dict[str, Any] = {
        "/version": {"ApiVersion": "1.41"},
        "/_ping": {},
        "/containers/json": [],
        "/containers/create": {"Id": "c0ffee", "Warnings": []},
        "/containers/c0ffee/json": {"Id": "c0ffee", "State": {"Running": False, "ExitCode": 1}},
        "/containers/c0ffee": {},
    }
    return 200, "application/json", json.dumps(answers.get(path, {})).encode()


def failing(where: str, reply: Reply) -> Callable[[str, str], Reply]:
    """An engine that answers well, but not at this path."""
    return lambda method, path: reply if path == where else well(method, path)


@contextmanager
def engine(place: Path, script: Callable[[str, str], Reply]) -> Iterator[list[str]]:
    """Listens at a Unix socket until the end of the block. `script`: from method and path (without
    the version) to the reply. Yields the requests so far."""
    seen: list[str] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            path = re.sub(r"^/v[\d.]+(?=/)", "", self.path.partition("?")[0])
            seen.append(f"{self.command} {path}")
            self.rfile.read(int(self.headers.get("content-length", 0)))
            reply = script(self.command, path)
            if isinstance(reply, str):
                if reply == STALLS:
                    over.wait()
                return
            status, kind, body = reply
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = do_HEAD = serve

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that gave up is meant."""

    with Server(str(place), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            server.shutdown()
            thread.join()
