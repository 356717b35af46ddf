"""A worker as the host sees it: complete messages over a byte transport, which is a child process
here, a container in docker.py.

Reads never block, and writes block no longer than their deadline. A worker's stderr is drained, and
its end is kept for error messages.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trace_bench.core.errors import UserError
from trace_bench.core.limits import Unreadable
from trace_bench.core.types import Tool
from trace_bench.sandbox.protocol import MAX_LINE, decode, encode

TAIL = 2000  # characters of stderr that are kept
CHUNK = 2**16
ENDING = 3.0  # seconds in which a worker whose channel is closed is seen to have ended, or has not


class Gone(Exception):
    """The worker has ended, or its channel is closed."""


class Transport(Protocol):
    """A worker's channel. `read` raises Gone at its end, `write` when it cannot be written."""

    def filenos(self) -> Sequence[int]: ...  # to wait on
    def read(self) -> bytes: ...  # what is there now, maybe nothing
    def write(self, data: bytes, deadline: float) -> None: ...  # deadline: time.monotonic()

    def epitaph(self, wait: float = 0) -> str:
        """How it ended and the end of its stderr. `wait`: seconds in which it may still end."""
        ...

    def kill(self) -> None: ...


class ProcessTransport:
    """A child process with these variables only. `hint`: what to change if it cannot be started;
    `how`: further arguments of subprocess.Popen."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, hint: str, **how: Any
    ) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,  # so that its children can be ended with it
                **how,
            )
        except OSError as error:
            raise UserError(
                f"no worker could be started with {command[0]} ({error}); {hint}."
            ) from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._in = self._process.stdin.fileno()
        self._out = self._process.stdout.fileno()
        self._err = self._process.stderr.fileno()
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._tail = b""

    def filenos(self) -> Sequence[int]:
        return [self._out, self._err]

    def read(self) -> bytes:
        try:
            with contextlib.suppress(BlockingIOError):
                self._tail = (self._tail + os.read(self._err, CHUNK))[-TAIL:]
            data = os.read(self._out, CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Gone(str(error)) from error
        if not data:
            raise Gone
        return data

    def write(self, data: bytes, deadline: float) -> None:
        write_all(lambda rest: os.write(self._in, rest), self._in, data, deadline)

    def epitaph(self, wait: float = 0) -> str:
        # An engine's client closes its output before it ends with the worker's exit code.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        code = self._process.returncode
        return ended(None if code is None else f"exit code {code}", self._tail)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]


def write_all(
    send: Callable[[memoryview], int], channel: Any, data: bytes, deadline: float
) -> None:
    """Sends all of `data` with `send`, which accepts what it can without blocking; `channel` is the
    file to wait on. Raises Gone if the other end is closed or does not read in time."""
    view = memoryview(data)
    while view:
        try:
            view = view[send(view) :]
        except BlockingIOError:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([], [channel], [], left)[1]:
                raise Gone("it does not read") from None
        except OSError as error:
            raise Gone(str(error)) from error


def ended(how: str | None, tail: bytes) -> str:
    """`exit code 1: <last line of stderr>`."""
    lines = tail.decode(errors="replace").strip().splitlines()
    return ": ".join([how or "its channel is closed", *lines[-1:]])


class Lost(Exception):
    """A worker has become unusable; the message says why."""


@dataclass(eq=False)
class Worker:
    """A worker as the host sees it: sends and receives messages, one per line."""

    transport: Transport
    buffer: bytearray = field(default_factory=bytearray)
    live: set[int] = field(default_factory=set)
    closing: list[int] = field(default_factory=list)
    tools: dict[str, tuple[Tool, ...]] = field(default_factory=dict)
    calls: int = 0

    def send(self, message: Mapping[str, Any], deadline: float) -> None:
        try:
            self.transport.write(encode(message), deadline)
        except Gone as error:
            raise Lost(f"it accepts no more input ({error or self.transport.epitaph()})") from error

    def lines(self) -> list[dict[str, Any]]:
        """The complete messages that have arrived. Raises Lost."""
        try:
            data = self.transport.read()
        except Gone:
            raise Lost(f"it ended ({self.transport.epitaph(ENDING)})") from None
        self.buffer += data
        *whole, rest = self.buffer.split(b"\n") if b"\n" in data else (self.buffer,)
        if len(rest) > MAX_LINE:
            raise Lost(f"it sent a line of more than {MAX_LINE // 2**20} MiB")
        self.buffer = rest
        try:
            return [decode(bytes(line)) for line in whole]
        except Unreadable as error:
            raise Lost(f"it broke the protocol: {error}") from error
