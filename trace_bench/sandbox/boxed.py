"""A suite whose episodes are played in workers. Callers can't tell it from one in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import Env, Suite
from trace_bench.core.types import Boundary, Message, Score, Step, Task, task_from_json
from trace_bench.sandbox.pool import Box, Pool, Result
from trace_bench.sandbox.protocol import Violation, score_from_json, step_from_json


class BoxedEnv:
    """One episode. What its environment raises, and what its box does to it, is an EpisodeError
    that names the boundary."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._box: Box = pool.box()

    def reset(self, task: Task) -> Step:
        return _step(self, self._one(reset_call(task)))

    def step(self, action: Message) -> Step:
        return _step(self, self._one(step_call(action)))

    def score(self) -> Score:
        """The score as things stand; 0 where the environment has no such thing."""
        result = self._one({"do": "score"})
        if isinstance(result, EpisodeError):
            raise result
        _raise_error(result)
        try:
            return (
                Score(0.0, False) if result["score"] is None else score_from_json(result["score"])
            )
        except (KeyError, Violation) as error:
            raise EpisodeError(Boundary.SANDBOX.value, f"no score came back: {error}") from error

    def close(self) -> None:
        self._pool.forget(self._box)

    def _one(self, call: dict[str, Any]) -> Result:
        return self._pool.act([(self._box, call)])[0]


class BoxedSuite:
    """`inner` tells of the tasks; the episodes are played by the pool's workers."""

    def __init__(self, inner: Suite, pool: Pool) -> None:
        self._inner = inner
        self._pool = pool
        self.name, self.variant = inner.name, inner.variant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # what this suite has beyond the protocol

    def splits(self) -> Sequence[str]:
        return self._inner.splits()

    def tasks(self, split: str) -> Sequence[Task]:
        return self._inner.tasks(split)

    def task(self, task_id: str) -> Task:
        return self._inner.task(task_id)

    def reference(self, task: Task) -> Sequence[Message]:
        return self._inner.reference(task)

    def make(self) -> Env:
        return BoxedEnv(self._pool)

    def act(self, calls: Sequence[tuple[Env, Task | Message]]) -> list[Step | Exception]:
        """Resets (a task) and steps (an action) of many episodes at once."""
        made = []
        for env, what in calls:
            assert isinstance(env, BoxedEnv)
            call = reset_call(what) if isinstance(what, Task) else step_call(what)
            made.append((env._box, call))
        out: list[Step | Exception] = []
        for (env, _), result in zip(calls, self._pool.act(made), strict=True):
            try:
                out.append(_step(env, result))  # type: ignore[arg-type]
            except EpisodeError as error:
                out.append(error)
        return out

    def close(self) -> None:
        self._pool.close()


class RemoteSuite:
    """A suite that only its worker knows: a benchmark with pins of its own in its image."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        about = pool.query({"do": "about"})
        self.name, self.variant = str(about["name"]), str(about["variant"])
        self._splits, self._about = tuple(about["splits"]), dict(about["about"])
        self.has_reference = bool(about["reference"])
        self.asks = bool(about["asks"])
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def about(self) -> Mapping[str, Any]:
        """What the suite says of itself: revision of its data, tasks left out, and so on."""
        return self._about

    def splits(self) -> Sequence[str]:
        return self._splits

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._tasks:
            found = self._pool.query({"do": "tasks", "split": split})
            self._tasks[split] = tuple(map(task_from_json, found))
        return self._tasks[split]

    def task(self, task_id: str) -> Task:
        for split in self._splits:
            for task in self.tasks(split):
                if task.id == task_id:
                    return task
        raise UserError(f"no task {task_id!r} in {self.name}/{self.variant}.")

    def reference(self, task: Task) -> Sequence[Message]:
        return list(self._pool.query({"do": "reference", "task": task}))

    def make(self) -> Env:
        return BoxedEnv(self._pool)


def reset_call(task: Task) -> dict[str, Any]:
    return {"do": "reset", "task": task}


def step_call(action: Message) -> dict[str, Any]:
    return {"do": "step", "action": action}


def _step(env: BoxedEnv, result: Result) -> Step:
    if isinstance(result, EpisodeError):
        raise result
    _raise_error(result)
    worker = env._box.worker
    try:
        return step_from_json(result.get("step"), worker.tools if worker else {})
    except Violation as error:
        raise EpisodeError(Boundary.SANDBOX.value, f"no step came back: {error}") from error


def _raise_error(result: Mapping[str, Any]) -> None:
    """What the environment raised. Of the boundaries that it may name only the user's is believed:
    what else goes wrong inside is its own failure."""
    if (error := result.get("error")) is not None:
        user = result.get("boundary") == Boundary.USER.value
        boundary = Boundary.USER if user else Boundary.ENVIRONMENT
        raise EpisodeError(boundary.value, str(error)[:2000])
