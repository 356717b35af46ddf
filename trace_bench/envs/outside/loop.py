"""Asynchronous libraries, for environments that are not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from trace_bench.core.errors import EpisodeError
from trace_bench.core.text import described
from trace_bench.envs.outside import refuse

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, which keeps connections alive between calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Awaitable[T], deadline: float) -> T:
        """The result. Raises EpisodeError past the deadline and for any error of the work."""

        async def awaited() -> T:
            return await work

        running = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        try:
            return running.result(deadline)
        except Late:
            running.cancel()
            refuse(f"no answer within {deadline:g} s (env.deadline)")
        except EpisodeError:
            raise
        except Exception as error:
            refuse(described(_first(error)))

    def alive(self) -> bool:
        """Whether it still runs what it is given: work that blocks its thread cannot be ended."""
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(1.0)

    def hold(self, manager: AbstractAsyncContextManager[T], deadline: float) -> Held[T]:
        """What an asynchronous context manager gives, entered and left in one task, as those of
        network libraries need. Raises EpisodeError as `run` does."""
        held: Held[T] = Held(self._loop)
        task = asyncio.run_coroutine_threadsafe(held.live(manager), self._loop)
        try:
            held.value = self.run(asyncio.wrap_future(held.entered, loop=self._loop), deadline)
        except EpisodeError:
            task.cancel()
            raise
        return held


class Held(Generic[T]):
    """An entered context manager's `value`, until `close`."""

    value: T

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._leave = loop, asyncio.Event()
        self.entered: Future[T] = Future()

    async def live(self, manager: AbstractAsyncContextManager[T]) -> None:
        try:
            async with manager as value:
                self.entered.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if not self.entered.done():
                self.entered.set_exception(_first(error))

    def close(self) -> None:
        """Leaves it, beside everything else."""
        self._loop.call_soon_threadsafe(self._leave.set)


def _first(error: BaseException) -> BaseException:
    """The error itself, of groups in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else ConnectionError("it was given up")
