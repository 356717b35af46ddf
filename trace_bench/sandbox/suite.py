"""A suite whose episodes run in a sandbox's workers. It behaves like a suite in this process and
has the same abilities as the suite inside, which its class inherits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trace_bench.core.decode import convert, messages_of
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.limits import Unreadable
from trace_bench.core.protocols import (
    ActsTogether,
    Env,
    Forwards,
    HasChecklist,
    HasMilestones,
    HasReference,
    Suite,
    Synthesizes,
    abilities,
    forwards,
    members,
)
from trace_bench.core.text import is_name
from trace_bench.core.types import Boundary, Message, Milestone, Score, Step, Task
from trace_bench.sandbox.calls import PooledEpisode, Result
from trace_bench.sandbox.pool import Pool
from trace_bench.sandbox.protocol import step_from_json, task_from_json

T = TypeVar("T")


class SandboxedEnv(Env):
    """One episode. Failures, also of the sandbox, raise an EpisodeError with the boundary."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.episode: PooledEpisode = pool.episode()

    def reset(self, task: Task) -> Step:
        return _step(self, self._one(_call(task)))

    def step(self, action: Message) -> Step:
        return _step(self, self._one(_call(action)))

    def score(self) -> Score:
        """The score of the current state; 0 if the environment cannot compute it."""
        result = _good(self._one({"do": "score"}))
        try:
            return Score(0.0, False) if result["score"] is None else convert(result["score"], Score)
        except (KeyError, Unreadable) as error:
            raise EpisodeError(Boundary.SANDBOX.value, f"no score came back: {error}") from error

    def close(self) -> None:
        self._pool.forget(self.episode)

    def _one(self, call: dict[str, Any]) -> Result:
        return self._pool.act([(self.episode, call)])[0]


class SandboxedSuite(Forwards, Suite):
    """The pool's workers run the episodes; all else is answered by the suite `inside`."""

    def __init__(self, inside: Suite, pool: Pool) -> None:
        super().__init__(inside)
        self._pool = pool

    def make(self) -> Env:
        return SandboxedEnv(self._pool)

    def close(self) -> None:
        self._pool.close()


class _Together(SandboxedSuite, ActsTogether):
    """One that asks nobody: a turn's calls are one message. Where a user is asked, each call ends
    by itself, as each is made in a thread of its own."""

    def act(self, calls: Sequence[tuple[Env, Task | Message]]) -> list[Step | Exception]:
        made = []
        for env, what in calls:
            assert isinstance(env, SandboxedEnv)
            made.append((env.episode, _call(what)))
        out: list[Step | Exception] = []
        for (env, _), result in zip(calls, self._pool.act(made), strict=True):
            try:
                out.append(_step(env, result))  # type: ignore[arg-type]
            except EpisodeError as error:
                out.append(error)
        return out


def abilities_of(suite: Suite) -> tuple[type, ...]:
    """What a sandboxed suite takes over from the suite inside; a worker reports the names."""
    return tuple(a for a in abilities(Suite) if isinstance(suite, a) and a is not ActsTogether)


def sandboxed(inside: Suite, pool: Pool) -> SandboxedSuite:
    """A suite that lists its tasks in this process, with its episodes in the pool's workers."""
    return _class_with(abilities_of(inside), inside.asks_user())(inside, pool)


def remote(pool: Pool, generated: str | None = None) -> SandboxedSuite:
    """A suite that exists only in its worker, such as a benchmark with its own packages.
    `generated`: its name if it comes from generated code; it can then take no other. Raises
    UserError for facts or tasks that are not its own or break a limit."""
    inside = _Remote(pool, generated)
    inherited = tuple(a for a in abilities_of(inside) if a.__name__ in inside.abilities)
    return _class_with(inherited, inside.asks_user())(inside, pool)


@functools.lru_cache(maxsize=32)
def _class_with(inherited: tuple[type, ...], asks: bool) -> type[SandboxedSuite]:
    base = SandboxedSuite if asks else _Together
    names = {name for protocol in (Suite, *inherited) for name in members(protocol)}
    own = forwards(names - vars(SandboxedSuite).keys())
    return type("SandboxedSuite", (base, *inherited), own)


class _Remote(HasReference, HasMilestones, HasChecklist, Synthesizes):
    """The suite in a worker, by remote calls. `abilities`: the names of those that it has."""

    def __init__(self, pool: Pool, generated: str | None) -> None:
        self._pool = pool
        self._read("about", self._describe)
        own = f"{self.name}/{self.variant}"
        if generated is not None and own != f"generated/{generated}":
            raise UserError(f"the suite generated/{generated} calls itself {own!r}.")
        self._envs = (self.name, own) if generated is None else (own,)
        self._prefix = "" if generated is None else f"{own}/"
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def _describe(self, about: Mapping[str, Any]) -> None:
        self.name, self.variant = map(_name, (about["name"], about["variant"]))
        self.abilities = _names(about["abilities"])
        self._splits, self._about = _names(about["splits"]), dict(about["about"])
        self._asks = bool(about["asks_user"])

    def _read(self, member: str, read: Callable[[Any], T], *given: Any) -> T:
        """What the member of the suite in the worker returns, read by `read`. Raises UserError
        with the worker's error, or if the answer cannot be read."""
        answer = self._pool.query({"do": member, "given": given})
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"the suite in the sandbox answered {member!r} with a value that cannot be "
                f"read ({type(error).__name__}: {error}). Change `env`."
            ) from error

    def _task(self, data: Any) -> Task:
        return task_from_json(data, self._envs, self._prefix)

    def splits(self) -> Sequence[str]:
        return self._splits

    def about(self) -> Mapping[str, Any]:
        return self._about

    def asks_user(self) -> bool:
        return self._asks

    def make(self) -> Env:
        return SandboxedEnv(self._pool)

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._tasks:
            self._tasks[split] = self._read("tasks", lambda a: tuple(map(self._task, a)), split)
        return self._tasks[split]

    def task(self, task_id: str) -> Task:
        for known in self._tasks.values():
            for task in known:
                if task.id == task_id:
                    return task
        return self._read("task", self._task, task_id)

    def reference(self, task: Task) -> Sequence[Message]:
        return self._read("reference", messages_of, task)

    def milestones(self, task: Task) -> Sequence[Milestone]:
        return self._read("milestones", _milestones, task)

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]:
        return self._read("checklist", lambda a: [[dict(i) for i in turn] for turn in a], task)

    def capabilities(self) -> Sequence[str]:
        return self._read("capabilities", _names)

    def synthetic(self, capability: str, seed: int) -> Task:
        return self._read("synthetic", self._task, capability, seed)


def _milestones(values: Any) -> Sequence[Milestone]:
    return convert({"similarity": 0, "success": False, "milestones": values}, Score).milestones


def _names(values: Any) -> tuple[str, ...]:
    return tuple(map(_name, values))


def _name(value: Any) -> str:
    if not is_name(value):
        raise ValueError(f"a short printable text was expected, got {str(value)[:100]!r}")
    return str(value)


def _call(what: Task | Message) -> dict[str, Any]:
    if isinstance(what, Task):
        return {"do": "reset", "task": what}
    return {"do": "step", "action": what}


def _step(env: SandboxedEnv, result: Result) -> Step:
    step, worker = _good(result).get("step"), env.episode.worker
    try:
        return step_from_json(step, worker.tools if worker else {})
    except Unreadable as error:
        raise EpisodeError(Boundary.SANDBOX.value, f"no step came back: {error}") from error


def _good(result: Result) -> Mapping[str, Any]:
    """The result; raises the sandbox's or the environment's error as an EpisodeError. The
    environment may only blame the models that it asks; any other error is its own failure."""
    if isinstance(result, EpisodeError):
        raise result
    if (error := result.get("error")) is not None:
        blamed = result.get("boundary")
        boundary = blamed if blamed in _ASKED else Boundary.ENVIRONMENT.value
        raise EpisodeError(boundary, str(error)[:2000])
    return result


_ASKED = (Boundary.USER.value, Boundary.JUDGE.value, Boundary.SIMULATOR.value)
