"""The workers of a pool: started, greeted and replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import wait
from typing import Any

from trace_bench.core.errors import SourceError, UserError
from trace_bench.sandbox.protocol import PROTOCOL, code_hash
from trace_bench.sandbox.transport import Lost, Transport, Worker


class Workers:
    """`there`: `size` of them, once they are filled; the other arguments are those of `Pool`."""

    def __init__(
        self,
        spawn: Callable[[], Transport],
        size: int,
        deadline: float,
        start: float,
        retries: int,
        source: Mapping[str, Any] | None,
    ) -> None:
        self._spawn, self.size = spawn, size
        self._deadline, self._start, self._retries = deadline, start, retries
        self._source = source
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
        for left in range(self._retries, -1, -1):
            there = len(self.there)
            while len(self.there) < self.size:
                self.there.append(Worker(self._spawn()))  # one by one: a later one may fail
            for worker in self.there[there:]:
                try:
                    self._greet(worker)
                except Lost as error:  # where others have started: as one that ends at work
                    if not (left and self.greeted):
                        why = f"the environment's worker does not start: {error}"
                        raise UserError(why) from error
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
            worker.send({"id": 0, **source}, time.monotonic() + self._deadline)
            error = self._first(worker).get("error")
        except Lost as lost:
            error = f"the worker with it does not start: {lost}"
        if error is not None:
            self.retire(worker)
            self._broken = SourceError(f"the environment's source is broken: {error}")
            raise self._broken

    def _first(self, worker: Worker) -> dict[str, Any]:
        deadline = time.monotonic() + self._start
        try:
            while time.monotonic() < deadline and not self.ended:
                if wait(worker.transport.filenos(), 0.2) and (messages := worker.lines()):
                    return messages[0]
            raise Lost(f"no greeting within {self._start:g} s ({worker.transport.epitaph()})")
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
