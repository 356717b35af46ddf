"""An environment that runs recordings and tasks of the suite that they come from."""

from __future__ import annotations

from collections.abc import Callable

from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Env, ScoresAlone
from trace_bench.core.types import Boundary, Message, Score, Step, Task
from trace_bench.envs.recorded.env import RecordedEnv

RECORDED = "recorded"  # the `env` of tasks that are recordings


class EitherEnv:
    """Implements `protocols.Env` and `ScoresAlone`. `reset` makes the environment that the task
    needs; a real environment that cannot score alone scores 0 when it is cut off."""

    def __init__(self, recorded: Callable[[], RecordedEnv], real: Callable[[Task], Env]) -> None:
        self._make_recorded, self._make_real = recorded, real
        self._env: Env | None = None

    def reset(self, task: Task) -> Step:
        self.close()
        self._env = self._make_recorded() if task.env == RECORDED else self._make_real(task)
        return self._env.reset(task)

    def step(self, action: Message) -> Step:
        if self._env is None:
            raise EpisodeError(
                Boundary.ENVIRONMENT.value, "step without a running episode; reset first"
            )
        return self._env.step(action)

    def score(self) -> Score:
        """The score of the conversation as it stands."""
        return self._env.score() if isinstance(self._env, ScoresAlone) else Score(0.0, False)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
