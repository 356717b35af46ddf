"""Resets and steps of environments. Exceptions are returned as values, not raised."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trace_bench.core.decode import Unreadable, step_of
from trace_bench.core.errors import EpisodeError, SourceError, TraceBenchError, attempt
from trace_bench.core.protocols import Env, Suite, make_env
from trace_bench.core.store import disk_errors
from trace_bench.core.text import without_password, without_surrogates
from trace_bench.core.types import Boundary, Message, Score, Step, Task, Turn

Due = tuple[Env, Task | Message]
"""A reset (given a task) or a step (given the agent's message) to make."""


def step_one(env: Env, what: Task | Message) -> Step | BaseException:
    """One reset or step. A reset gets data of its own: what one episode writes into it, no other
    may see."""
    if isinstance(what, Task):
        return attempt(lambda: usable(env.reset(apart(what))))
    return attempt(lambda: usable(env.step(what)))


def step_all(suite: Suite, due: Sequence[Due]) -> Iterator[Step | BaseException]:
    """Many resets and steps of one suite's environments, in this thread: together where the suite
    `Suite.act`, else each when its result is asked for. Resets get data of their own here too."""
    if not suite.has(Suite.act):
        return (step_one(env, what) for env, what in due)
    calls = [
        (env, apart(what) if isinstance(what, Task) else what)
        for env, what in due
        if not isinstance(env, Unmade)
    ]
    results = iter(_together(suite, calls) if calls else ())
    return (step_one(*call) if isinstance(call[0], Unmade) else next(results) for call in due)


def apart(task: Task) -> Task:
    return replace(task, data=deepcopy(task.data))


def opened(suite: Suite, tasks: Sequence[Task]) -> Iterator[Step | BaseException]:
    """What the environments of these tasks return at reset, or the exception; closed at the end."""
    due = [(make(suite), task) for task in tasks]
    try:
        yield from step_all(suite, due)
    finally:
        for env, _ in due:
            close(env)


def _together(suite: Suite, due: Sequence[Due]) -> Sequence[Step | BaseException]:
    """One result per call, in order. Raises UserError for a sandbox that does not work."""
    results = attempt(lambda: list(suite.act(due)))
    if isinstance(results, SourceError):  # a generated environment that no longer loads
        results = EpisodeError(Boundary.ENVIRONMENT.value, str(results))
    elif isinstance(results, TraceBenchError):
        raise results
    elif not isinstance(results, BaseException) and len(results) != len(due):
        why = f"act() returned {len(results)} results for {len(due)} calls"
        results = EpisodeError(Boundary.ENVIRONMENT.value, why)
    if isinstance(results, BaseException):
        return [results] * len(due)
    return [s if isinstance(s, BaseException) else attempt(partial(usable, s)) for s in results]


class Unmade(Env):
    """In place of an environment that could not be made: `reset` raises the suite's error."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def reset(self, task: Task) -> Step:
        raise self._error

    def step(self, action: Message) -> Step:
        raise self._error


def make(suite: Suite) -> Env:
    """An environment for one episode; an `Unmade` one if the suite raises."""
    env = attempt(lambda: make_env(suite))
    return Unmade(env) if isinstance(env, BaseException) else env


def usable(answer: Any) -> Step:
    """What `reset` or `step` returned, checked, without lone surrogates. Raises EpisodeError."""
    try:
        step = step_of(answer)
    except Unreadable as error:
        raise EpisodeError(Boundary.ENVIRONMENT.value, str(error)) from error
    if all(str(m.get("content") or "").isascii() for m in step.messages):
        return step
    return replace(step, messages=tuple(without_surrogates(dict(m)) for m in step.messages))


def beyond(score: Score, turns: Sequence[Turn]) -> str:
    """What is wrong with a checklist that names a step which the environment never saw; ""."""
    heard = sum(turn.malformed is None for turn in turns)
    for check in score.checks:
        if check.step is not None and check.step >= heard:
            return (
                f"the item {check.item!r} of the checklist was satisfied by step {check.step}; "
                f"steps count from 0, and it saw {heard} of the agent's messages"
            )
    return ""


def close(env: Env) -> None:
    """Closes an environment. Errors are ignored: its score is already known."""
    attempt(env.close)


MOST = 8  # tracebacks of one start


@dataclass
class Faults:
    """Writes the first tracebacks of a start to `path` (None: nowhere), each cause once, over those
    of earlier starts. An error that has none (what a server or a worker reports) is left out."""

    path: Path | None = None
    _kinds: set[str] = field(default_factory=set)

    def note(self, task: Task, boundary: Boundary, error: BaseException) -> None:
        """Writes the exception's traceback unless one from the same place is there."""
        if error.__traceback__ is None:
            return
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} {place.filename}:{place.lineno}"
        if kind in self._kinds:
            return
        if self.path is None or len(self._kinds) >= MOST:
            return
        trace = without_password("".join(traceback.format_exception(error)))
        text = f"{task.id}, lost at the boundary {boundary}:\n{trace}\n"
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            how = "a" if self._kinds else "w"
            with self.path.open(how, encoding="utf-8", errors="replace") as file:
                file.write(text)
        self._kinds.add(kind)

    @property
    def where(self) -> str:
        """The file as the end of a message; empty if this start has written none."""
        return f" Tracebacks: {self.path}." if self._kinds else ""
