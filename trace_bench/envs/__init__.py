"""Environments. `settings.registry` finds them; `check` tests that one satisfies the protocol."""

from __future__ import annotations

from collections.abc import Callable

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Env
from trace_bench.core.types import Boundary, Message, Score, Step, Task


class EitherEnv(Env):
    """The environment that `make` gives for the task, of a suite with several kinds of tasks."""

    def __init__(self, make: Callable[[Task], Env]) -> None:
        self._make = make
        self._env: Env | None = None

    def reset(self, task: Task) -> Step:
        self.close()
        self._env = self._make(task)
        return self._env.reset(task)

    def step(self, action: Message) -> Step:
        if self._env is None:
            raise EpisodeError(Boundary.ENVIRONMENT, "step without a running episode; reset first")
        return self._env.step(action)

    def score(self) -> Score:
        """The score of the conversation as it stands."""
        return Score(0.0, False) if self._env is None else self._env.score()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
