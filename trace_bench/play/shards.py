"""A batch of episodes in parts of whole groups, each played as a batch of its own, by one process
or by several: what comes out, and in which order, depends on the number of parts alone.

The other processes are forks of this one for as long as the batch lasts: they begin with the model
and the suites that are loaded here, and share their memory."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.types import Task, Trajectory

Ended = Callable[[int, Trajectory], None]
"""Given the place of an episode in the batch, and the episode, when it ends."""
Fault = Callable[[str, str], None]  # given the kind and the traceback of what ended an episode
PlayPart = Callable[[Sequence[int], Ended, Fault], Any]
"""Plays the episodes at these places of the batch."""


def divided(tasks: Sequence[Task], shards: int) -> list[list[int]]:
    """The places in `tasks`, dealt out in at most `shards` parts of neighbours of one task."""
    numbered = groupby(range(len(tasks)), key=lambda i: tasks[i].id)
    groups = [list(places) for _, places in numbered]
    parts = ([i for group in groups[s::shards] for i in group] for s in range(shards))
    return [part for part in parts if part]


def play(
    parts: Sequence[Sequence[int]], workers: int, part: PlayPart, ended: Ended, fault: Fault
) -> None:
    """Plays all parts; `ended` and `fault` are called in this process, part by part. Raises what
    playing raises here, and for another process UserError, or RuntimeError with its traceback."""
    workers = min(workers, len(parts))
    others = [_Fork(parts[n::workers], part) for n in range(1, workers)]
    try:
        for other in others:
            other.listen()
        for n, places in enumerate(parts):
            if n % workers == 0:
                part(places, ended, fault)
                continue
            for name, *values in others[n % workers - 1].told():
                (ended if name == "ended" else fault)(*values)
    finally:
        for other in others:
            other.end()


class _Fork:
    """A process that plays parts of the batch and tells what happens, in order."""

    def __init__(self, parts: Sequence[Sequence[int]], part: PlayPart) -> None:
        context = multiprocessing.get_context("fork")
        self._here, there = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(there, parts, part), daemon=True)
        self._process.start()
        there.close()
        self._told: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._thread = Thread(target=self._listen, daemon=True)

    def listen(self) -> None:
        """Reads what the process says as it says it, so that it never waits to be heard. Only
        after the last fork, which would else begin with a thread too few."""
        self._thread.start()

    def told(self) -> Iterator[tuple[Any, ...]]:
        """("ended", place, trajectory) and ("fault", kind, text) of its next part."""
        while (told := self._told.get())[0] != "done":
            if told[0] == "refused":
                raise UserError(told[1])
            if told[0] == "raised":
                raise RuntimeError(f"in a process of policy.workers:\n{told[1]}")
            if told[0] == "gone":
                raise UserError(
                    f"a process of policy.workers ended by itself ({told[1]}; -9: killed, perhaps "
                    "for its memory). Run the same command again, or lower `policy.workers`."
                )
            yield told

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        if self._thread.is_alive():
            self._thread.join()
        self._here.close()

    def _listen(self) -> None:
        try:
            while True:
                self._told.put(self._here.recv())
        except (EOFError, OSError):
            self._process.join()
            self._told.put(("gone", self._process.exitcode))


def _work(there: Connection, parts: Sequence[Sequence[int]], part: PlayPart) -> None:
    """What the fork does. An interrupt is its parent's, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def tell(*what: Any) -> None:
        there.send(what)  # raises where nobody is left to hear it: then this process ends

    try:
        for places in parts:
            part(
                places,
                lambda place, played: tell("ended", place, played),
                lambda kind, text: tell("fault", kind, text),
            )
            tell("done")
    except BrokenPipeError:
        return
    except UserError as error:
        tell("refused", str(error))
    except BaseException:
        tell("raised", traceback.format_exc())
