"""Resets and steps of environments. Exceptions are returned as values, not raised."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from trace_bench.core.errors import EpisodeError, SourceError, TraceBenchError
from trace_bench.core.limits import Limits
from trace_bench.core.limits import fault_of as fault_of_value
from trace_bench.core.protocols import (
    ActsTogether,
    Env,
    Suite,
    make_env,
)
from trace_bench.core.store import disk_errors
from trace_bench.core.text import described, without_surrogates
from trace_bench.core.types import (
    ROLES,
    Boundary,
    Check,
    Message,
    Milestone,
    Score,
    Step,
    StopReason,
    Task,
    to_json,
)

MESSAGES = Limits(2**20)
"""Of the messages of one step, and of its tools: more than any context holds, and little enough for
a tokenizer to read in seconds."""
SCORE = Limits(16 * 2**20)

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
        return env.reset(what) if isinstance(what, Task) else env.step(what)
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
        return found
    why = f"act() returned {len(found)} results for {len(due)} calls"
    return [EpisodeError(Boundary.ENVIRONMENT.value, why)] * len(due)


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


def fault_of(step: Any) -> str | None:
    """Describes the first error in the return value of an environment's `reset` or `step`; None if
    it is valid. Every step is checked, so that no invalid score enters a run's figures."""
    if not isinstance(step, Step):
        return f"expected a trace_bench.Step, got {type(step).__name__}"
    if not isinstance(step.messages, tuple | list) or not isinstance(step.tools, tuple | list):
        return "messages and tools must be tuples"
    for name, values in (("messages", step.messages), ("tools", step.tools)):
        if fault := fault_of_value(list(values), MESSAGES):
            return f"the {name} cannot be used: {fault}"
    for message in step.messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return f"expected a message with a role of {', '.join(ROLES)}, got {_shown(message)}"
        if not isinstance(message.get("content"), str):
            return f"a message's content must be a string, got {_shown(message)}"
        if fault := _fault_of_message(message):
            return fault
    for tool in step.tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return f"expected a tool with a name, got {_shown(tool)}"
    if not isinstance(step.done, bool):
        return f"done must be True or False, got {_shown(step.done)}"
    if not isinstance(step.stop, StopReason | None):
        return f"expected a trace_bench.StopReason or None as stop, got {_shown(step.stop)}"
    if step.stop is StopReason.ERROR and step.score is not None:
        return "a step that stops with an error has no score"
    return None if step.score is None else fault_of_score(step.score)


def _fault_of_message(message: Message) -> str | None:
    """The first error in what a message has besides its role and content."""
    for key in ("name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            return f"a message's {key} must be a string, got {_shown(message)}"
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        return f"a message's tool calls must be a list, got {_shown(message)}"
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return f"expected a tool call with a function, got {_shown(call)}"
    return None


def fault_of_score(score: Any) -> str | None:
    """Describes the first error in a score; None if it is valid."""
    if not isinstance(score, Score):
        return f"expected a trace_bench.Score, got {type(score).__name__}"
    value = score.similarity
    if not isinstance(value, int | float) or isinstance(value, bool) or not _is_share(value):
        return f"similarity must be a number from 0 to 1, got {_shown(value)}"
    if not isinstance(score.success, bool):
        return f"success must be True or False, got {_shown(score.success)}"
    if not all(isinstance(m, tuple | list) for m in (score.milestones, score.minefields)):
        return "milestones and minefields must be tuples"
    if others := [m for m in (*score.milestones, *score.minefields) if type(m) is not Milestone]:
        return f"expected a trace_bench.Milestone, got {_shown(others[0])}"
    if not isinstance(score.checks, tuple) or any(type(c) is not Check for c in score.checks):
        return f"checks must be a tuple of trace_bench.Check, got {_shown(score.checks)}"
    if score.details or score.milestones or score.minefields or score.checks:
        try:
            fault = fault_of_value(to_json(score), SCORE)
        except RecursionError:
            fault = "they are nested too deeply"
        if fault is not None:
            return f"details and milestones must be JSON-safe: {fault}"
    return None


def _is_share(value: float) -> bool:
    """Whether it is from 0 to 1; asked of the number, since a subclass may compare otherwise."""
    kind = float if isinstance(value, float) else int
    return bool(kind.__ge__(value, 0) and kind.__le__(value, 1))  # type: ignore[operator]


def _shown(value: Any) -> str:
    """The value in a message, shortened; its type if it cannot be shown."""
    try:
        return f"{value!r:.200}"
    except Exception:  # nested without end, a number of many digits, a `__repr__` that raises
        return f"a value of type {type(value).__name__}"


def readable(step: Step) -> Step:
    """The step without lone surrogates, which tokenizers refuse."""
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
