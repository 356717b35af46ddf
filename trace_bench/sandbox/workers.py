"""Workers as the host sees them: child processes that take and send complete messages, maybe with a
container around each (engine.py); and those of a pool, started, greeted and replaced.

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
from multiprocessing.connection import wait
from typing import Any

from trace_bench.core.decode import Unreadable
from trace_bench.core.errors import EngineError, SourceError, UserError
from trace_bench.core.types import Tool
from trace_bench.sandbox.protocol import MAX_LINE, PROTOCOL, code_hash, decode, encode
from trace_bench.settings.schema import SandboxSettings

TAIL = 2000  # characters of stderr that are kept
CHUNK = 2**16
ENDING = 3.0  # seconds in which a worker whose channel is closed is seen to have ended, or has not


class Lost(Exception):
    """A worker has become unusable; the message says why."""


class Worker:
    """A child process with these variables only, to which messages go and from which they come, one
    per line. `hint`: what to change if it cannot be started; `how`: further arguments of
    subprocess.Popen."""

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
        self._pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)
        self._tail = b""  # the end of its stderr
        self.begun = bytearray()  # of a line that is not there whole
        self.live: set[int] = set()
        self.closing: list[int] = []
        self.tools: dict[str, tuple[Tool, ...]] = {}
        self.calls = 0

    def filenos(self) -> Sequence[int]:
        return [self._out, self._err]

    def send(self, message: Mapping[str, Any], deadline: float) -> None:
        """Raises Lost for a line too long, or not read by `deadline` (time.monotonic())."""
        line = encode(message)
        if len(line) > MAX_LINE:
            raise Lost(f"what is to be sent has {len(line)} bytes; at most {MAX_LINE}")
        view = memoryview(line)
        while view:
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([], [self._in], [], left)[1]:
                    raise Lost("it accepts no more input (it does not read)") from None
            except OSError as error:
                raise Lost(f"it accepts no more input ({error})") from error

    def lines(self) -> list[dict[str, Any]]:
        """The complete messages that have arrived. Raises Lost."""
        data = self._read()
        self.begun += data
        *whole, rest = self.begun.split(b"\n") if b"\n" in data else (self.begun,)
        if len(rest) > MAX_LINE:
            raise Lost(f"it sent a line of more than {MAX_LINE // 2**20} MiB")
        self.begun = rest
        try:
            return [decode(bytes(line)) for line in whole]
        except Unreadable as error:
            raise Lost(f"it broke the protocol: {error}") from error

    def _read(self) -> bytes:
        """What is there now, maybe nothing."""
        try:
            self._hear()
            data = os.read(self._out, CHUNK)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            raise Lost(f"it ended ({self.epitaph(ENDING)})")
        return data

    def epitaph(self, wait: float = 0) -> str:
        """How it ended, `exit code 1: <last line of stderr>`. `wait`: seconds in which it may still
        end: an engine's client closes its output before it ends with the worker's exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        with contextlib.suppress(OSError):
            self._hear()  # its last words may have come after the end of its output
        code = self._process.returncode
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return ": ".join(
            ["its channel is closed" if code is None else f"exit code {code}", *lines[-1:]]
        )

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._tail = (self._tail + os.read(self._err, CHUNK))[-TAIL:]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()


class Workers:
    """`there`: as many as `sandbox.workers` says, once they are filled; the arguments are those of
    `Pool`."""

    def __init__(
        self,
        spawn: Callable[[], Worker],
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
                stray = worker.lines() or worker.begun
            except Lost as error:
                stray = [{"gone": str(error)}]
            if stray:
                self.retire(worker, f"it sent an unexpected message, or ended: {str(stray)[:100]}")
        if self._broken is not None:
            raise self._broken
        for left in range(self._sandbox.retries, -1, -1):
            there = len(self.there)
            while len(self.there) < self._sandbox.workers:
                self.there.append(self._spawn())  # one by one: a later one may fail
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
                if wait(worker.filenos(), 0.2) and (messages := worker.lines()):
                    return messages[0]
            raise Lost(f"no greeting within {self._sandbox.start:g} s ({worker.epitaph()})")
        except Lost:
            self.retire(worker)
            raise

    def retire(self, worker: Worker, reason: str | None = None) -> None:
        """Ends a worker; `reason`: why it is lost."""
        if reason is not None:
            self.lost.append(reason)
        worker.kill()
        if worker in self.there:
            self.there.remove(worker)
