"""The real environment behind a recording, with set rates of wrong, stale and inconsistent answers:
a simulator by program, whose errors are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trace_bench.checklists.talk import Call
from trace_bench.core.checked import number
from trace_bench.core.errors import EpisodeError
from trace_bench.core.protocols import Env, Suite
from trace_bench.core.store import stable_seed
from trace_bench.core.types import Boundary, Message, Task

ENDED = json.dumps({"error": "ToolError: the session has ended"})


@dataclass(frozen=True)
class Rates:
    """The shares of calls that are answered wrongly (a value differs), as at the dialogue's
    beginning (stale), or, if they were made before, otherwise than then (inconsistent)."""

    wrong: float = field(default=0.0, metadata=number(0, 1))
    stale: float = field(default=0.0, metadata=number(0, 1))
    inconsistent: float = field(default=0.0, metadata=number(0, 1))


class Behind:
    """Implements `tools.World` for one episode. Draws follow from `seed`, the task and the call, so
    that an equal call has an equal error."""

    def __init__(self, suite: Suite, task: Task, rates: Rates, seed: int) -> None:
        self._suite, self._task, self._rates, self._seed = suite, task, rates, seed
        self._env, self._done = suite.make(), False
        self._env.reset(task)
        self._made: dict[str, int] = {}

    def answer(self, call: Call) -> str:
        """Makes the call in the real environment."""
        if self._done:
            return ENDED
        answer, self._done = _call(self._env, call)
        return answer

    def shown(self, call: Call, answer: str) -> str:
        """The answer as the agent reads it."""
        before = self._made.get(call.key, 0)
        self._made[call.key] = before + 1
        if before and self._draw("inconsistent", call, before) < self._rates.inconsistent:
            return altered(answer, before)
        if self._draw("stale", call) < self._rates.stale:
            return self._at_first(call)
        if self._draw("wrong", call) < self._rates.wrong:
            return altered(answer, 0)
        return answer

    def close(self) -> None:
        self._env.close()

    def _at_first(self, call: Call) -> str:
        """What the call would have given at the beginning."""
        fresh = self._suite.make()
        try:
            fresh.reset(self._task)
            return _call(fresh, call)[0]
        finally:
            fresh.close()

    def _draw(self, what: str, call: Call, number: int = 0) -> float:
        return stable_seed(self._seed, what, self._task.id, call.key, number) / 2**63


def _call(env: Env, call: Call) -> tuple[str, bool]:
    """(the answer, whether the episode ended)."""
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    raw = {"id": "call_0", "type": "function", "function": function}
    message: Message = {"role": "assistant", "content": "", "tool_calls": [raw]}
    step = env.step(message)
    for answer in step.messages:
        if answer.get("role") == "tool":
            return str(answer["content"]), step.done
    if step.done:
        return ENDED, True
    raise EpisodeError(Boundary.ENVIRONMENT.value, f"{call.name} got no answer")


def altered(answer: str, number: int) -> str:
    """An answer of the same form in which one value differs."""
    try:
        value = json.loads(answer)
    except ValueError:
        return json.dumps(None) if number % 2 == 0 else json.dumps("unknown")
    return json.dumps(_altered(value, number))


def _altered(value: Any, number: int) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 + number
    if isinstance(value, str):
        return f"{value[1:]}{value[:1]}" if value[1:] + value[:1] != value else f"{value}0"
    if isinstance(value, list) and value:
        return [_altered(value[0], number), *value[1:]]
    if isinstance(value, Mapping) and value:
        last = list(value)[-1 - number % len(value)]
        return {k: _altered(v, number) if k == last else v for k, v in value.items()}
    return "unknown" if value is None else None
