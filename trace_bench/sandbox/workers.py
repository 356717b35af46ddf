"""Workers as the host sees them: complete messages over a byte transport, which is a child process
here, maybe with a container around it (containers.py); and those of a pool, started, greeted and
replaced.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Protocol

from trace_bench.core.decode import Unreadable
from trace_bench.core.errors import EngineError, SourceError, UserError
from trace_bench.core.types import Tool
from trace_bench.sandbox.protocol import MAX_LINE, PROTOCOL, code_hash, decode, encode
from trace_bench.settings.schema import SandboxSettings

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
            self._hear()
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
        with contextlib.suppress(OSError):
            self._hear()  # its last words may have come after the end of its output
        code = self._process.returncode
        return ended(None if code is None else f"exit code {code}", self._tail)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._tail = (self._tail + os.read(self._err, CHUNK))[-TAIL:]

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


class TooLong(Lost):
    """A message was not sent, as no worker would read it; the worker is as it was."""


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
        line = encode(message)
        if len(line) > MAX_LINE:
            raise TooLong(f"what is to be sent has {len(line)} bytes; at most {MAX_LINE}")
        try:
            self.transport.write(line, deadline)
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


class Workers:
    """`there`: as many as `sandbox.workers` says, once they are filled; the arguments are those of
    `Pool`."""

    def __init__(
        self,
        spawn: Callable[[], Transport],
        sandbox: SandboxSettings,
        source: Mapping[str, Any] | None,
    ) -> None:
        self._spawn, self._sandbox, self._source = spawn, sandbox, source
        self.there: list[Worker] = []
        self._broken: SourceError | None = None  # one could not load the source
        self.greeted = False  # one has started: later errors are not the sandbox's
        self.lost: list[str] = []  # why some were replaced, for diagnosis
        self.ended = False  # no greeting is waited for any more

    def fill(self, busy: Collection[Worker]) -> None:
        """Starts missing workers, in parallel. Replaces one that is not `busy` and has sent an
        unexpected message: a bad episode may have left something running in it."""
        for worker in [worker for worker in self.there if worker not in busy]:
            try:
                stray = worker.lines() or worker.buffer
            except Lost as error:
                stray = [{"gone": str(error)}]
            if stray:
                self.retire(worker, f"it sent an unexpected message, or ended: {str(stray)[:100]}")
        if self._broken is not None:
            raise self._broken
        for left in range(self._sandbox.retries, -1, -1):
            there = len(self.there)
            while len(self.there) < self._sandbox.workers:
                self.there.append(Worker(self._spawn()))  # one by one: a later one may fail
            for worker in self.there[there:]:
                try:
                    self._greet(worker)
                except Lost as error:  # where others have started: as one that ends at work
                    if not (left and self.greeted):
                        why = f"the environment's worker does not start: {error}"
                        raise EngineError(why) from error
                    self.lost.append(f"it ended at its start: {error}")

    def _greet(self, worker: Worker) -> None:
        """Reads the worker's greeting. Raises UserError if the worker has other code, or cannot
        build the environment; Lost if it ends before."""
        greeting = self._first(worker)
        if (error := greeting.get("error")) is not None:
            raise UserError(f"the environment cannot be made in its worker: {error}")
        if (greeting.get("greeting"), greeting.get("code")) != (PROTOCOL, code_hash()):
            raise UserError(
                f"the worker has other code (protocol {greeting.get('greeting')!r}, version "
                f"{greeting.get('version')!r}, code {greeting.get('code')!r}) than this program "
                f"({PROTOCOL}, {code_hash()}): its image is of another version. Build it "
                "again with `python -m trace_bench.sandbox.build`."
            )
        self.greeted = True
        if self._source is not None:
            self._load(worker, self._source)

    def _load(self, worker: Worker, source: Mapping[str, Any]) -> None:
        """Gives the worker its program text. Raises SourceError, also from every later call of the
        pool: a text that one worker could load and another could not is not to be trusted."""
        try:
            worker.send({"id": 0, **source}, time.monotonic() + self._sandbox.deadline)
            error = self._first(worker).get("error")
        except Lost as lost:
            error = f"the worker with it does not start: {lost}"
        if error is not None:
            self.retire(worker)
            self._broken = SourceError(f"the environment's source is broken: {error}")
            raise self._broken

    def _first(self, worker: Worker) -> dict[str, Any]:
        deadline = time.monotonic() + self._sandbox.start
        try:
            while time.monotonic() < deadline and not self.ended:
                if wait(worker.transport.filenos(), 0.2) and (messages := worker.lines()):
                    return messages[0]
            raise Lost(
                f"no greeting within {self._sandbox.start:g} s ({worker.transport.epitaph()})"
            )
        except Lost:
            self.retire(worker)
            raise

    def retire(self, worker: Worker, reason: str | None = None) -> None:
        """Ends a worker; `reason`: why it is lost."""
        if reason is not None:
            self.lost.append(reason)
        worker.transport.kill()
        if worker in self.there:
            self.there.remove(worker)
