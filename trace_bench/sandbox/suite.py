"""A suite whose episodes run in a sandbox's workers. It behaves like a suite in this process and
has the same abilities as the suite inside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import (
    AsksUser,
    Borrows,
    Describes,
    Env,
    HasChecklist,
    HasMilestones,
    HasReference,
    Lender,
    Suite,
    Synthesizes,
    SynthesizesDomains,
)
from trace_bench.core.types import Boundary, Message, Milestone, Score, Step, Task
from trace_bench.sandbox.pool import Pool, PooledEpisode, Result
from trace_bench.sandbox.protocol import (
    Violation,
    is_name,
    message_from_json,
    milestones_from_json,
    score_from_json,
    step_from_json,
    task_from_json,
)

T = TypeVar("T")


class SandboxedEnv:
    """One episode. Failures of its environment and of the sandbox raise an EpisodeError with the
    boundary."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.episode: PooledEpisode = pool.episode()

    def reset(self, task: Task) -> Step:
        return _step(self, self._one(reset_call(task)))

    def step(self, action: Message) -> Step:
        return _step(self, self._one(step_call(action)))

    def score(self) -> Score:
        """The score of the current state; 0 if the environment cannot compute it."""
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
        self._pool.forget(self.episode)

    def _one(self, call: dict[str, Any]) -> Result:
        return self._pool.act([(self.episode, call)])[0]


class SandboxedSuite:
    """`inner` provides the tasks; the pool's workers run the episodes."""

    def __init__(self, inner: Any, pool: Pool) -> None:
        self._inner = inner
        self._pool = pool
        self.name, self.variant = inner.name, inner.variant

    def splits(self) -> Sequence[str]:
        return list(self._inner.splits())

    def tasks(self, split: str) -> Sequence[Task]:
        return list(self._inner.tasks(split))

    def task(self, task_id: str) -> Task:
        found: Task = self._inner.task(task_id)
        return found

    def make(self) -> Env:
        return SandboxedEnv(self._pool)

    def act(self, calls: Sequence[tuple[Env, Task | Message]]) -> list[Step | Exception]:
        """Resets (given a task) or steps (given an action) many episodes at once."""
        made = []
        for env, what in calls:
            assert isinstance(env, SandboxedEnv)
            call = reset_call(what) if isinstance(what, Task) else step_call(what)
            made.append((env.episode, call))
        out: list[Step | Exception] = []
        for (env, _), result in zip(calls, self._pool.act(made), strict=True):
            try:
                out.append(_step(env, result))  # type: ignore[arg-type]
            except EpisodeError as error:
                out.append(error)
        return out

    def close(self) -> None:
        self._pool.close()


class _References(SandboxedSuite):
    def reference(self, task: Task) -> Sequence[Message]:
        return list(self._inner.reference(task))


class _Milestones(SandboxedSuite):
    def milestones(self, task: Task) -> Sequence[Milestone]:
        return list(self._inner.milestones(task))


class _Checklists(SandboxedSuite):
    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]:
        return [list(turn) for turn in self._inner.checklist(task)]


class _Synthesis(SandboxedSuite):
    def capabilities(self) -> Sequence[str]:
        return list(self._inner.capabilities())

    def synthetic(self, capability: str, seed: int) -> Task:
        made: Task = self._inner.synthetic(capability, seed)
        return made


class _Domains(SandboxedSuite):
    def domains(self) -> Sequence[str]:
        return list(self._inner.domains())

    def synthetic_in(self, domain: str, seed: int) -> Task:
        made: Task = self._inner.synthetic_in(domain, seed)
        return made


class _Users(SandboxedSuite):
    def asks_user(self) -> bool:
        return bool(self._inner.asks_user())


class _Descriptions(SandboxedSuite):
    def about(self) -> Mapping[str, Any]:
        return dict(self._inner.about())


class _Loans(SandboxedSuite):
    def lender(self, split: str) -> Lender | None:
        found: Lender | None = self._inner.lender(split)
        return found


_ABILITIES: Mapping[type, type[SandboxedSuite]] = {
    HasReference: _References,
    HasMilestones: _Milestones,
    HasChecklist: _Checklists,
    Synthesizes: _Synthesis,
    SynthesizesDomains: _Domains,
    AsksUser: _Users,
    Describes: _Descriptions,
}
"""The optional abilities of a suite, and the class that forwards each."""
_HERE: Mapping[type, type[SandboxedSuite]] = {**_ABILITIES, Borrows: _Loans}
"""With those that only a suite in this process has: what they return cannot leave a worker."""


def abilities(suite: object) -> list[str]:
    """The names of a suite's abilities, as a worker reports them."""
    return [protocol.__name__ for protocol in _ABILITIES if isinstance(suite, protocol)]


def sandboxed(inner: Suite, pool: Pool) -> SandboxedSuite:
    """A suite that lists its tasks in this process, with its episodes in the pool's workers."""
    names = tuple(protocol.__name__ for protocol in _HERE if isinstance(inner, protocol))
    return _class_with(names)(inner, pool)


def remote(pool: Pool, generated: str | None = None) -> SandboxedSuite:
    """A suite that exists only in its worker, such as a benchmark with its own packages.
    `generated`: its name if it comes from generated code; it can then take no other. Raises
    UserError for facts or tasks that are not its own or break a limit."""
    inner = _Remote(pool, generated)
    known = {protocol.__name__ for protocol in _ABILITIES}
    return _class_with(tuple(n for n in inner.abilities if n in known))(inner, pool)


@functools.lru_cache(maxsize=32)
def _class_with(names: tuple[str, ...]) -> type[SandboxedSuite]:
    kinds = [kind for protocol, kind in _HERE.items() if protocol.__name__ in names]
    return type("SandboxedSuite", (*kinds, SandboxedSuite), {})


class _Remote:
    """The suite in a worker, by remote calls. `abilities`: the names of its abilities."""

    def __init__(self, pool: Pool, generated: str | None) -> None:
        self._pool = pool
        self._query({"do": "about"}, self._describe)
        own = f"{self.name}/{self.variant}"
        if generated is not None and own != f"generated/{generated}":
            raise UserError(f"the suite generated/{generated} calls itself {own!r}.")
        self._envs = (self.name, own) if generated is None else (own,)
        self._prefix = "" if generated is None else f"{own}/"
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def _describe(self, about: Mapping[str, Any]) -> None:
        self.name, self.variant = map(_name, (about["name"], about["variant"]))
        self.abilities = tuple(map(_name, about["abilities"]))
        self._splits, self._about = tuple(map(_name, about["splits"])), dict(about["about"])
        self._capabilities = tuple(map(_name, about["capabilities"]))
        self._asks = bool(about["asks_user"])

    def _query(self, call: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """The worker's answer, read by `read`. Raises UserError if it cannot be read."""
        answer = self._pool.query(dict(call))
        try:
            return read(answer)
        except (Violation, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"the suite in the sandbox answered {call['do']!r} with a value that cannot be "
                f"read ({type(error).__name__}: {error}). Change `env`."
            ) from error

    def splits(self) -> Sequence[str]:
        return self._splits

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._tasks:
            call = {"do": "tasks", "split": split}
            self._tasks[split] = self._query(call, lambda found: tuple(map(self._task, found)))
        return self._tasks[split]

    def task(self, task_id: str) -> Task:
        for known in self._tasks.values():
            for task in known:
                if task.id == task_id:
                    return task
        return self._query({"do": "task", "id": task_id}, self._task)

    def reference(self, task: Task) -> Sequence[Message]:
        call = {"do": "reference", "task": task}
        return self._query(call, lambda found: list(map(message_from_json, found)))

    def milestones(self, task: Task) -> Sequence[Milestone]:
        call = {"do": "milestones", "task": task}
        return self._query(call, milestones_from_json)

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]:
        call = {"do": "checklist", "task": task}
        return self._query(call, lambda found: [[dict(item) for item in turn] for turn in found])

    def capabilities(self) -> Sequence[str]:
        return self._capabilities

    def synthetic(self, capability: str, seed: int) -> Task:
        """Raises UserError with the worker's error if it cannot make the task."""
        call = {"do": "synthetic", "capability": capability, "seed": seed}
        return self._query(call, self._task)

    def domains(self) -> Sequence[str]:
        return self._query({"do": "domains"}, lambda found: tuple(map(_name, found)))

    def synthetic_in(self, domain: str, seed: int) -> Task:
        """As `synthetic`."""
        return self._query({"do": "in_domain", "domain": domain, "seed": seed}, self._task)

    def _task(self, data: Any) -> Task:
        return task_from_json(data, self._envs, self._prefix)

    def asks_user(self) -> bool:
        return self._asks

    def about(self) -> Mapping[str, Any]:
        return self._about


def _name(value: Any) -> str:
    if not is_name(value):
        raise ValueError(f"a short printable text was expected, got {str(value)[:100]!r}")
    return str(value)


def reset_call(task: Task) -> dict[str, Any]:
    return {"do": "reset", "task": task}


def step_call(action: Message) -> dict[str, Any]:
    return {"do": "step", "action": action}


def _step(env: SandboxedEnv, result: Result) -> Step:
    if isinstance(result, EpisodeError):
        raise result
    _raise_error(result)
    worker = env.episode.worker
    try:
        return step_from_json(result.get("step"), worker.tools if worker else {})
    except Violation as error:
        raise EpisodeError(Boundary.SANDBOX.value, f"no step came back: {error}") from error


def _raise_error(result: Mapping[str, Any]) -> None:
    """Raises the environment's error as an EpisodeError. The environment may only blame the models
    that it asks; any other error is its own failure."""
    if (error := result.get("error")) is not None:
        blamed = result.get("boundary")
        boundary = blamed if blamed in _ASKED else Boundary.ENVIRONMENT.value
        raise EpisodeError(boundary, str(error)[:2000])


_ASKED = (Boundary.USER.value, Boundary.JUDGE.value, Boundary.SIMULATOR.value)
