"""Policies without a model: lower and upper bounds for scores."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from trace_bench.core.chat import arguments_of, call_message, parts, text_message
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Policy, RunContext, Suite, TurnReply, TurnRequest
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Message, Task, Tool, Turn


class ScriptedPolicy(Policy):
    """Answers every request immediately with `reply(request)`, which subclasses define; an
    exception there becomes that episode's policy failure."""

    capacity = 64
    repeatable = True
    scripted = True

    def __init__(self) -> None:
        self._ready: list[TurnReply] = []

    def reply(self, request: TurnRequest) -> Message:
        raise NotImplementedError

    def load(self, agent: AgentSpec) -> None:
        """Nothing to load."""

    def submit(self, requests: Sequence[TurnRequest]) -> None:
        for request in requests:
            try:
                message = self.reply(request)
                turn = Turn(request.messages, message, adapter=request.adapter)
                self._ready.append(TurnReply(request.episode, turn))
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                self._ready.append(TurnReply(request.episode, None, error=text))

    def collect(self) -> list[TurnReply]:
        if not self._ready:
            raise RuntimeError("collect() with nothing submitted")
        ready, self._ready = self._ready, []
        return ready

    def release(self, episode: int) -> None:
        self._ready = [r for r in self._ready if r.episode != episode]

    def close(self) -> None:
        self._ready = []


class IdlePolicy(ScriptedPolicy):
    """Sends empty messages and no calls: a lower bound. Scripted, so for method=base only."""

    def reply(self, request: TurnRequest) -> Message:
        return text_message("")


class ReferencePolicy(ScriptedPolicy):
    """Replays each task's reference trajectory, then sends empty messages: the upper bound."""

    def __init__(self, suite: Suite) -> None:
        super().__init__()
        self._suite = suite
        self._script: dict[int, list[Message]] = {}

    def bind(self, episode: int, task: Task) -> None:
        """Sets the episode's task; called at the start."""
        self._script[episode] = list(self._suite.reference(task))

    def reply(self, request: TurnRequest) -> Message:
        script = self._script[request.episode]
        return script.pop(0) if script else text_message("")

    def release(self, episode: int) -> None:
        super().release(episode)
        self._script.pop(episode, None)


def reference(run: RunContext) -> ReferencePolicy:
    """`policy=reference`: replays the reference trajectory of each task, an upper bound for scores.
    Scripted, so it works with method=base only.

    Raises UserError for a suite without references."""
    if run.suite is None or not run.suite.has(Suite.reference):
        name = "this suite" if run.suite is None else f"{run.suite.name}/{run.suite.variant}"
        raise UserError(
            f"policy=reference replays reference trajectories, and {name} has none "
            "(Suite.reference, see docs/environments.md). Change `policy`."
        )
    return ReferencePolicy(run.suite)


class RandomPolicy(ScriptedPolicy):
    """Calls random tools with random arguments, then sends empty messages: another lower bound for
    scores. Scripted, so it works with method=base only.

    `calls`: tool calls of an episode.

    The arguments fit the schema. Deterministic given each request's seed."""

    def __init__(self, calls: int = 4) -> None:
        super().__init__()
        self.calls = calls
        self._open: dict[int, tuple[tuple[Tool, ...], int]] = {}  # (tools, turns so far)

    def reply(self, request: TurnRequest) -> Message:
        tools, count = self._open.get(request.episode, (request.tools, 0))
        self._open[request.episode] = (tools, count + 1)
        if count >= self.calls or not tools:
            return text_message("")
        random = Random(stable_seed("random policy", request.seed, count))
        function = random.choice(tools)["function"]
        parameters = function.get("parameters") or {}
        return call_message(function["name"], plausible(parameters, random), f"call_{count}")

    def release(self, episode: int) -> None:
        super().release(episode)
        self._open.pop(episode, None)


def plausible(schema: dict[str, Any], random: Random) -> dict[str, Any]:
    """Random arguments for a JSON schema of type object: all required ones, half of the others."""
    return _object(schema, schema, random, 0)


def _object(schema: Any, root: Any, random: Random, depth: int) -> dict[str, Any]:
    taken, chosen = arguments_of(schema, root), {}
    for name, part in taken.schemas.items():
        if name in taken.required or random.random() < 0.5:
            chosen[name] = _value(part, root, random, depth)
    return chosen


def _value(schema: Any, root: Any, random: Random, depth: int) -> Any:
    said = (p for p in parts(schema, root) if p.keys() & {"enum", "const", "type", "properties"})
    part = next(said, {})
    if listed := part.get("enum") or ([part["const"]] if "const" in part else []):
        return random.choice(listed)
    kind = part.get("type", "object" if "properties" in part else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "boolean":
        return random.random() < 0.5
    if kind == "integer":
        return random.randrange(100)
    if kind == "number":
        return round(random.uniform(0, 100), 2)
    if kind == "array" and depth < 3:  # its elements may hold such arrays without end
        return [_value(part.get("items", {}), root, random, depth + 1)]
    if kind == "object" and depth < 3:
        return _object(part, root, random, depth + 1)
    if kind in ("null", "array", "object"):
        return {"null": None, "array": [], "object": {}}[kind]
    return random.choice(("home", "Anna", "hello", "+14155550123", "today"))
