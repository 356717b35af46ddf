"""Resets and steps of environments. Exceptions are returned as values, not raised."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from trace_bench.core.decode import step_of
from trace_bench.core.errors import EpisodeError, SourceError, TraceBenchError
from trace_bench.core.limits import Unreadable
from trace_bench.core.protocols import (
    ActsTogether,
    Env,
    Suite,
    make_env,
)
from trace_bench.core.store import disk_errors
from trace_bench.core.text import described, without_surrogates
from trace_bench.core.types import (
    Boundary,
    Message,
    Step,
    Task,
)

Due = tuple[Env, Task | Message]
"""A reset (given a task) or a step (given the agent's message) to make."""


class Way(Enum):
    """How a suite's environments are stepped: all that are due in one call, one after the other,
    or each in its own thread."""

    TOGETHER = auto()
    IN_TURN = auto()
    IN_THREADS = auto()


def way_of(suite: Suite) -> Way:
    """How this suite's environments are stepped."""
    if isinstance(suite, ActsTogether):
        return Way.TOGETHER
    return Way.IN_THREADS if suite.asks_user() else Way.IN_TURN


def step_one(env: Env, what: Task | Message) -> Step | Exception:
    """One reset or step."""
    try:
        return usable(env.reset(what) if isinstance(what, Task) else env.step(what))
    except Exception as error:
        return error
    except SystemExit as error:  # only the person at the keyboard ends the program
        return EpisodeError(Boundary.ENVIRONMENT.value, described(error))


def step_all(suite: Suite, due: Sequence[Due]) -> Sequence[Step | Exception]:
    """Many resets and steps of one suite's environments, in this thread."""
    if not isinstance(suite, ActsTogether):
        return [step_one(env, what) for env, what in due]
    made = [call for call in due if not isinstance(call[0], Unmade)]
    found = iter(_together(suite, made) if made else ())
    return [step_one(*call) if isinstance(call[0], Unmade) else next(found) for call in due]


def _together(suite: ActsTogether, due: Sequence[Due]) -> Sequence[Step | Exception]:
    """One result per call, in order, also if the suite raises or returns another number. Raises
    UserError for a sandbox that does not work."""
    try:
        found = list(suite.act(due))
    except SourceError as error:  # a generated environment that no longer loads
        return [EpisodeError(Boundary.ENVIRONMENT.value, str(error))] * len(due)
    except TraceBenchError:
        raise
    except Exception as error:
        return [error] * len(due)
    if len(found) == len(due):
        return [step if isinstance(step, Exception) else _checked(step) for step in found]
    why = f"act() returned {len(found)} results for {len(due)} calls"
    return [EpisodeError(Boundary.ENVIRONMENT.value, why)] * len(due)


def _checked(given: Any) -> Step | Exception:
    try:
        return usable(given)
    except Exception as error:
        return error


class Unmade(Env):
    """In place of an environment that its suite could not make: `reset` raises the suite's error,
    so that the episode fails like any other whose environment raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def reset(self, task: Task) -> Step:
        raise self._error

    def step(self, action: Message) -> Step:
        raise self._error


def make(suite: Suite) -> Env:
    """An environment for one episode; an `Unmade` one if the suite raises."""
    try:
        return make_env(suite)
    except Exception as error:
        return Unmade(error)


def usable(given: Any) -> Step:
    """What `reset` or `step` returned, checked, so that no invalid score enters the figures, and
    without lone surrogates, which tokenizers refuse. Raises EpisodeError."""
    try:
        step = step_of(given)
    except Unreadable as error:
        raise EpisodeError(Boundary.ENVIRONMENT.value, str(error)) from error
    if all(str(m.get("content") or "").isascii() for m in step.messages):
        return step
    return replace(step, messages=tuple(without_surrogates(dict(m)) for m in step.messages))


def close(env: Env) -> None:
    """Closes an environment. Errors are ignored: its score is already known."""
    try:
        env.close()
    except Exception:
        return


MOST = 8  # tracebacks of one start


@dataclass
class Faults:
    """Writes the first tracebacks of a start to `path`, each cause once; those of earlier starts
    are replaced. An error that has none (what a server or a worker reports) is left out."""

    path: Path
    _kinds: set[str] = field(default_factory=set)

    def note(self, task: Task, boundary: Boundary, error: Exception) -> None:
        """Writes the exception's traceback unless one from the same place is there."""
        if error.__traceback__ is None:
            return
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} {place.filename}:{place.lineno}"
        if kind in self._kinds or len(self._kinds) >= MOST:
            return
        text = "".join(traceback.format_exception(error))
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(
                "a" if self._kinds else "w", encoding="utf-8", errors="replace"
            ) as file:
                file.write(f"{task.id}, lost at the boundary {boundary}:\n{text}\n")
        self._kinds.add(kind)

    @property
    def where(self) -> str:
        """The file as the end of a message; empty if this start has written none."""
        return f" Tracebacks: {self.path}." if self._kinds else ""


def with_guidance(messages: Sequence[Message], guidance: str) -> tuple[Message, ...]:
    """The messages with the agent's prompt: "\\nGuidance: <prompt>" is added to the first system
    message, or becomes one if there is none. Nothing else inserts the prompt."""
    if not guidance:
        return tuple(messages)
    out = list(messages)
    for i, message in enumerate(out):
        if message["role"] == "system":
            out[i] = {**message, "content": f"{message['content']}\nGuidance: {guidance}"}
            return tuple(out)
    return ({"role": "system", "content": f"Guidance: {guidance}"}, *out)


def without_guidance(messages: Sequence[Message], guidance: str) -> tuple[Message, ...]:
    """The messages as they were before `with_guidance`."""
    out = list(messages)
    for i, message in enumerate(out):
        if message["role"] == "system":
            text = str(message["content"]).removesuffix(f"Guidance: {guidance}")
            if not text:
                return (*out[:i], *out[i + 1 :])
            out[i] = {**message, "content": text.removesuffix("\n")}
            break
    return tuple(out)
