"""A few long-lived workers for many episodes: batches, deadlines, replacement.

Environments are deterministic, so an episode can be moved: when a worker is lost, each of its
episodes is replayed on another worker, at the episode's next call. The calls of the lost worker's
batch are then retried one at a time, so that one bad episode does not affect others; after
`retries` more attempts a call fails with a failure of the sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from trace_bench.core.errors import EpisodeError, SourceError, UserError
from trace_bench.core.protocols import Ask
from trace_bench.sandbox.calls import MOST_ASKS, Calls
from trace_bench.sandbox.protocol import PROTOCOL, code_hash
from trace_bench.sandbox.transport import Lost, Transport, Worker


@dataclass(eq=False)
class PooledEpisode:
    """An episode in the pool. `history`: the calls that led to its state."""

    number: int
    worker: Worker | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Future[str]] = field(default_factory=dict)  # by question, for a replay
    strikes: int = 0

    def leave(self) -> None:
        """Leaves its worker, which closes it with the next batch."""
        if self.worker is not None:
            self.worker.live.discard(self.number)
            self.worker.closing.append(self.number)
            self.worker = None


Result = dict[str, Any] | EpisodeError
Wanted = Sequence[tuple[PooledEpisode, dict[str, Any]]]
"""Calls, each with its episode. A round's `places` are some of them."""


class Pool:
    """`spawn` makes a worker's transport. `size`: number of workers. `deadline`: seconds for one
    batch, without the host's for questions. `start`: seconds for a worker's greeting."""

    def __init__(
        self,
        spawn: Callable[[], Transport],
        *,
        size: int = 1,
        deadline: float = 30.0,
        start: float = 60.0,
        retries: int = 2,
        ask: Ask | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        self._spawn = spawn
        self._size, self._deadline, self._start, self._retries = size, deadline, start, retries
        self._ask, self._source = ask, source
        self._workers: list[Worker] = []
        self._count = 0
        self._threads: ThreadPoolExecutor | None = None
        self.greeted = False  # a worker has started: later errors are not the sandbox's
        self._broken: SourceError | None = None  # a worker could not load the source
        self.lost: list[str] = []  # why workers were replaced, for diagnosis

    def episode(self) -> PooledEpisode:
        self._count += 1
        return PooledEpisode(self._count)

    def forget(self, episode: PooledEpisode) -> None:
        """Ends the episode; its worker closes it with the next batch."""
        episode.leave()
        episode.history, episode.answers = [], {}

    def act(self, calls: Wanted) -> list[Result]:
        """One result per call, in order. Failures of a worker are results; raises UserError only if
        no worker can be started, and SourceError if one cannot load its program text."""
        results: dict[int, Result] = {}
        alone = self._round(calls, range(len(calls)), results)
        while alone:
            now, rest = alone[: self._size], alone[self._size :]
            alone = rest + self._round(calls, now, results, apart=True)
        return [results[i] for i in range(len(calls))]

    def query(self, call: dict[str, Any]) -> Any:
        """Calls the suite itself, not an episode, and returns its answer. Raises UserError, and
        SourceError for a suite that is a program text."""
        kind = UserError if self._source is None else SourceError
        (result,) = self.act([(self.episode(), call)])
        if isinstance(result, EpisodeError):
            raise kind(f"the environment's worker does not answer: {result}")
        if "value" not in result:
            raise kind(f"the environment refused {call['do']}: {result.get('error', result)}")
        return result["value"]

    def close(self) -> None:
        for worker in self._workers:
            worker.transport.kill()
        self._workers = []
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # -- one round: a batch for every worker that has calls ---------------------------------------

    def _round(
        self, calls: Wanted, places: Sequence[int], results: dict[int, Result], apart: bool = False
    ) -> list[int]:
        """Fills `results`; returns the calls to retry alone. `apart`: one worker per call."""
        batches = []
        alone: list[int] = []
        for worker, own in self._assign(calls, places, apart):
            try:
                batches.append(self._send(worker, own, calls))
            except Lost as error:
                alone += self._give_up(worker, own, calls, results, str(error))
        for batch, outcome in self._wait(batches):
            if isinstance(outcome, Lost):
                alone += self._give_up(batch.worker, batch.places, calls, results, str(outcome))
                continue
            for place, result in zip(batch.places, outcome, strict=True):
                results[place] = result
                _remember(calls[place], result)
        return sorted(alone)

    def _assign(
        self, calls: Wanted, places: Sequence[int], apart: bool
    ) -> list[tuple[Worker, list[int]]]:
        """Assigns calls to workers. Episodes stay on their worker, new ones go to the worker with
        the fewest; `apart` moves them so that no two share a worker."""
        self._fill()
        work: dict[int, list[int]] = {}
        for n, place in enumerate(places):
            episode = calls[place][0]
            if episode.worker not in self._workers:
                episode.worker = None  # the worker was lost: replay elsewhere
            if apart:
                chosen = self._workers[n]
                if episode.worker is not chosen:
                    episode.leave()
            else:
                chosen = episode.worker or min(self._workers, key=lambda w: len(w.live))
            if episode.worker is None:
                chosen.live.add(episode.number)
            work.setdefault(self._workers.index(chosen), []).append(place)
        return [(self._workers[n], own) for n, own in work.items()]

    def _send(self, worker: Worker, places: list[int], calls: Wanted) -> Calls:
        worker.calls += 1
        deadline = time.monotonic() + self._deadline
        message = {
            "id": worker.calls,
            "calls": [_as_sent(*calls[place], worker) for place in places],
            "close": worker.closing,
        }
        worker.closing = []
        worker.send(message, deadline)
        episodes = [calls[place][0] for place in places]
        answers = {episode.number: episode.answers for episode in episodes}
        made = sum(1 + len(episode.history) for episode in episodes)
        return Calls(worker, places, worker.calls, deadline, answers, most_asks=MOST_ASKS * made)

    def _wait(self, batches: Sequence[Calls]) -> list[tuple[Calls, list[dict[str, Any]] | Lost]]:
        """The answers of all batches, in order of arrival; Lost for a worker that fails."""
        done: list[tuple[Calls, list[dict[str, Any]] | Lost]] = []
        waiting = list(batches)
        while waiting:
            owner = {fd: batch for batch in waiting for fd in batch.worker.transport.filenos()}
            ready = {id(owner[fd]) for fd in wait(list(owner), _pause(waiting))}  # type: ignore[index]
            for batch in list(waiting):
                outcome = self._progress(batch, id(batch) in ready)
                if outcome is not None:
                    waiting.remove(batch)
                    done.append((batch, outcome))
        return done

    def _progress(self, batch: Calls, ready: bool) -> list[dict[str, Any]] | Lost | None:
        try:
            for message in batch.worker.lines() if ready else ():
                if "ask" not in message:
                    return batch.results(message)
                self._threads = self._threads or ThreadPoolExecutor(64)
                batch.question(message, self._ask, self._threads)
            batch.answer()
        except Lost as error:
            return error
        if not batch.open and time.monotonic() > batch.deadline:
            return Lost(f"no answer within {self._deadline:g} s")
        return None

    # -- workers ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Starts missing workers, in parallel. Replaces a worker that has sent an unexpected
        message: a bad episode may have left something running in it."""
        for worker in list(self._workers):
            try:
                stray = worker.lines() or worker.buffer
            except Lost as error:
                stray = [{"gone": str(error)}]
            if stray:
                self.lost.append(f"it sent an unexpected message, or ended: {str(stray)[:100]}")
                self._retire(worker)
        if self._broken is not None:
            raise self._broken
        for left in range(self._retries, -1, -1):
            there = len(self._workers)
            while len(self._workers) < self._size:
                self._workers.append(Worker(self._spawn()))  # one by one: a later one may fail
            for worker in self._workers[there:]:
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
            self._retire(worker)
            self._broken = SourceError(f"the environment's source is broken: {error}")
            raise self._broken

    def _first(self, worker: Worker) -> dict[str, Any]:
        deadline = time.monotonic() + self._start
        try:
            while time.monotonic() < deadline:
                if wait(worker.transport.filenos(), 0.2) and (messages := worker.lines()):
                    return messages[0]
            raise Lost(f"no greeting within {self._start:g} s ({worker.transport.epitaph()})")
        except Lost:
            self._retire(worker)
            raise

    def _retire(self, worker: Worker) -> None:
        worker.transport.kill()
        if worker in self._workers:
            self._workers.remove(worker)

    def _give_up(
        self,
        worker: Worker,
        places: Sequence[int],
        calls: Wanted,
        results: dict[int, Result],
        reason: str,
    ) -> list[int]:
        """Removes the worker; its calls are retried alone, or fail if they were tried too often."""
        self._retire(worker)
        self.lost.append(reason)
        again = []
        for place in places:
            episode = calls[place][0]
            episode.strikes += len(places) == 1
            if episode.strikes > self._retries:
                results[place] = EpisodeError("sandbox", f"the worker is lost: {reason}")
            else:
                again.append(place)
        return again


def _as_sent(episode: PooledEpisode, call: dict[str, Any], worker: Worker) -> dict[str, Any]:
    """The call with the episode's number, and with its history if the worker does not have it."""
    sent = {"episode": episode.number, **call}
    if call["do"] == "reset":
        episode.answers = {}
    if episode.worker is not worker:
        if episode.history and call["do"] != "reset":
            sent["replay"] = episode.history
        episode.worker = worker
    return sent


def _remember(made: tuple[PooledEpisode, dict[str, Any]], result: Result) -> None:
    episode, call = made
    episode.strikes = 0
    if call["do"] == "reset":
        episode.history = [call]
    elif call["do"] == "step" and "step" in result:  # type: ignore[operator]
        episode.history.append(call)


def _pause(waiting: Sequence[Calls]) -> float:
    """Seconds until the next deadline; a short time while the host is answering."""
    if any(batch.open for batch in waiting):
        return 0.005
    return max(0.0, min(batch.deadline for batch in waiting) - time.monotonic()) + 0.001
