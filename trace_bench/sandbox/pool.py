"""A few long-lived workers for many episodes: batches, deadlines, replacement.

Environments are deterministic, so an episode can be moved: when a worker is lost, each of its
episodes is replayed on another worker, at the episode's next call. The calls that the lost worker
had are then retried one at a time, so that one bad episode does not affect others; after `retries`
more attempts a call fails with a failure of the sandbox.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from multiprocessing.connection import wait
from typing import Any

from trace_bench.core.errors import EpisodeError, SourceError, UserError
from trace_bench.core.protocols import Ask
from trace_bench.sandbox.calls import Calls, Due, PooledEpisode, Result
from trace_bench.sandbox.workers import Lost, Worker, Workers
from trace_bench.settings.schema import SandboxSettings

ASKED = 1024  # questions at a time; a thread is started for each only when it is needed
SIDE_BY_SIDE = 64  # batches of a worker at a time: as many threads, of `sandbox.processes`


class Pool:
    """`spawn` starts a worker. `ask`: answers the workers' questions; their time is not
    the batch's. `source`: a program text that each worker loads.

    Any thread may call. One thread of the pool's own sends and receives for all, and lives as long
    as the pool: some sandboxes end with the thread that started them."""

    def __init__(
        self,
        spawn: Callable[[], Worker],
        sandbox: SandboxSettings,
        ask: Ask | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        self.workers = Workers(spawn, sandbox, source)
        self._sandbox, self._ask = sandbox, ask
        self._kind = UserError if source is None else SourceError
        self._numbers = count(1)
        self._threads: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bell = _Bell()
        # What callers put in, and the thread takes out:
        self._wanted: deque[list[Due]] = deque()
        self._forgotten: deque[PooledEpisode] = deque()
        # The thread's alone:
        self._due: set[Due] = set()  # calls without a result
        self._sent: list[Calls] = []
        self._alone: list[Due] = []  # to be retried when nothing else runs
        self._apart = False  # what runs is such a retry

    def episode(self) -> PooledEpisode:
        return PooledEpisode(next(self._numbers))

    def forget(self, episode: PooledEpisode) -> None:
        """Ends the episode; its worker closes it with the next batch."""
        self._forgotten.append(episode)

    def act(self, calls: Sequence[tuple[PooledEpisode, dict[str, Any]]]) -> list[Result]:
        """One result per call, in order. Failures of a worker are results; raises UserError only if
        no worker can be started, and SourceError if one cannot load its program text."""
        if not calls:
            return []
        wanted = [Due(*call) for call in calls]
        with self._starting:
            self._wanted.append(wanted)
            if self._thread is None or not self._thread.is_alive():
                self.workers.ended = False
                self._thread = threading.Thread(target=self._serve, name="sandbox", daemon=True)
                self._thread.start()
        self._bell.ring()
        return [due.result.result() for due in wanted]

    def query(self, call: dict[str, Any]) -> Any:
        """Calls the suite itself, not an episode, and returns its answer. Raises UserError, and
        SourceError for a suite that is a program text."""
        (result,) = self.act([(self.episode(), call)])
        if isinstance(result, EpisodeError):
            raise self._kind(f"the environment's worker does not answer: {result}")
        if "value" not in result:
            raise self._kind(f"the environment refused {call['do']}: {result.get('error', result)}")
        return result["value"]

    def close(self) -> None:
        with self._starting:
            self.workers.ended = True
            thread = self._thread
        self._bell.ring()
        if thread is not None:
            thread.join(5)  # it may be starting a container
        for worker in [*self.workers.there]:
            self.workers.retire(worker)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # -- the thread: sends what may be sent, takes what has arrived -------------------------------

    def _serve(self) -> None:
        while not self.workers.ended:
            try:
                self._begin()
                self._listen()
            except BaseException as error:  # whoever waits for a result is to know
                self._end_all(error)
        with self._starting:  # what is wanted from now on is another thread's
            self._end_all(EpisodeError("sandbox", "the pool was closed"))
            self._thread = None

    def _end_all(self, error: BaseException) -> None:
        while self._wanted:
            self._due.update(self._wanted.popleft())
        for due in self._due:
            due.result.set_exception(error)
        self._due, self._sent, self._alone = set(), [], []

    def _begin(self) -> None:
        """Sends what is wanted; first, when nothing else runs, the calls to be retried."""
        while self._forgotten:
            episode = self._forgotten.popleft()
            episode.leave()
            episode.history, episode.answers = [], {}
        if self._alone:
            if not self._sent:
                size = self._sandbox.workers
                now, self._alone = self._alone[:size], self._alone[size:]
                self._apart = True
                self._send_all(now)
        elif not (self._apart and self._sent):
            self._apart = False
            while self._wanted and len(self._sent) < SIDE_BY_SIDE * self._sandbox.workers:
                wanted = self._wanted.popleft()
                self._due.update(wanted)
                self._send_all(wanted)

    def _send_all(self, calls: Sequence[Due]) -> None:
        """A batch for every worker that has some of the calls."""
        for worker, some in self._assign(calls):
            try:
                self._sent.append(self._send(worker, some))
            except Lost as error:
                self._give_up(worker, str(error), some)

    def _assign(self, calls: Sequence[Due]) -> list[tuple[Worker, list[Due]]]:
        """Assigns calls to workers. Episodes stay on their worker, new ones go to the worker with
        the fewest; a retry moves them so that no two share a worker."""
        self.workers.fill({batch.worker for batch in self._sent})
        work: dict[Worker, list[Due]] = {}
        for n, due in enumerate(calls):
            episode = due.episode
            if episode.worker not in self.workers.there:
                episode.worker = None  # the worker was lost: replay elsewhere
            if self._apart:
                chosen = self.workers.there[n]
                if episode.worker is not chosen:
                    episode.leave()
            else:
                chosen = episode.worker or min(self.workers.there, key=lambda w: len(w.live))
            if episode.worker is None:
                chosen.live.add(episode.number)
            work.setdefault(chosen, []).append(due)
        return list(work.items())

    def _send(self, worker: Worker, calls: list[Due]) -> Calls:
        worker.calls += 1
        deadline = time.monotonic() + self._sandbox.deadline
        sent = [due.episode.sent(due.call, worker) for due in calls]
        worker.send({"id": worker.calls, "calls": sent, "close": worker.closing}, deadline)
        worker.closing = []
        return Calls(worker, calls, worker.calls, deadline, self._bell.ring)

    def _listen(self) -> None:
        """Waits until something arrives, is wanted or is late, and takes it."""
        if self._alone and not self._sent:
            return  # nothing could be sent: it is retried at once
        busy = dict.fromkeys(calls.worker for calls in self._sent)
        owner = {fd: worker for worker in busy for fd in worker.filenos()}
        clocks = [calls.deadline for calls in self._sent if not calls.open]
        left = max(0.0, min(clocks) - time.monotonic()) + 0.001 if clocks else None
        ready = wait([*owner, self._bell.heard], left)
        self._bell.quiet()
        told = {owner[fd] for fd in ready if fd in owner}  # type: ignore[index]
        for worker in busy:
            try:
                for message in worker.lines() if worker in told else ():
                    self._take(worker, message)
                self._answer(worker)
            except Lost as error:
                self._give_up(worker, str(error))

    def _take(self, worker: Worker, message: Mapping[str, Any]) -> None:
        """Takes one message of a worker. Raises Lost for one that nothing asked for."""
        batches = [calls for calls in self._sent if calls.worker is worker]
        if not batches:
            raise Lost(f"it sent an unexpected message: {str(message)[:100]}")
        if "ask" in message:
            asking = [calls for calls in batches if calls.of(message.get("episode"))]
            self._threads = self._threads or ThreadPoolExecutor(ASKED)
            (asking or batches)[0].question(message, self._ask, self._threads)
            return
        due = [calls for calls in batches if calls.number == message.get("id")]
        done = (due or batches)[0]
        for each, result in zip(done.due, done.results(message), strict=True):
            each.episode.remember(each.call, result)
            self._put(each, result)
        self._sent.remove(done)

    def _answer(self, worker: Worker) -> None:
        """Sends answers that are there. Raises Lost for a batch that is late."""
        for calls in [calls for calls in self._sent if calls.worker is worker]:
            calls.answer()
            if not calls.open and time.monotonic() > calls.deadline:
                raise Lost(f"no answer within {self._sandbox.deadline:g} s")

    def _put(self, due: Due, result: Result) -> None:
        self._due.discard(due)
        due.result.set_result(result)

    def _give_up(self, worker: Worker, reason: str, calls: Sequence[Due] = ()) -> None:
        """Removes the worker; what it had is retried alone, or fails if tried too often. `calls`:
        those that could not be sent."""
        self.workers.retire(worker, reason)
        due = [*calls, *(d for c in self._sent if c.worker is worker for d in c.due)]
        self._sent = [batch for batch in self._sent if batch.worker is not worker]
        for each in due:
            each.episode.strikes += len(due) == 1
            if each.episode.strikes > self._sandbox.retries:
                self._put(each, EpisodeError("sandbox", f"the worker is lost: {reason}"))
            else:
                self._alone.append(each)
        # In order, so that what an episode leaves in its worker does not harm an earlier one.
        self._alone.sort(key=lambda due: due.episode.number)


class _Bell:
    """Wakes a thread that waits for `heard`."""

    def __init__(self) -> None:
        self.heard, self._ringer = os.pipe()
        for end in (self.heard, self._ringer):
            os.set_blocking(end, False)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it rings already
            os.write(self._ringer, b"!")

    def quiet(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.heard, 2**16)

    def __del__(self) -> None:
        for end in (self.heard, self._ringer):
            with suppress(OSError):
                os.close(end)
