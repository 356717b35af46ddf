"""A server that answers with bytes, be they HTTP or not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answering(*sent: bytes, pause: float = 0.0) -> Iterator[str]:
    """The address of a server that answers each request, by when its body ends with "}", with
    these bytes, one after the other, and ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer(connection: socket.socket) -> None:
            with connection:
                asked = b""
                while not asked.endswith(b"}"):
                    asked += connection.recv(2**16)
                try:
                    for data in sent:
                        connection.sendall(data)
                        time.sleep(pause)
                except OSError:
                    return

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
