"""A suite whose episodes run in a sandbox's workers. It behaves like a suite in this process and
has the same abilities as the suite inside. Also the suite that a worker makes of a program text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from trace_bench.core.decode import Unreadable, convert, messages_of
from trace_bench.core.errors import EpisodeError, UserError
from trace_bench.core.protocols import Env, Lender, Suite
from trace_bench.core.text import is_name
from trace_bench.core.types import IN_EPISODES, Boundary, Message, Score, Step, Task
from trace_bench.sandbox.calls import PooledEpisode, Result
from trace_bench.sandbox.pool import Pool
from trace_bench.sandbox.protocol import step_from_json, task_from_json

T = TypeVar("T")
NAMES = ("make_task", "reference", "Env")  # what a program text defines
SPLIT = "seeds"  # of its suite
_SHOWN = 16  # number of tasks in that split; further ones are made by seed


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


ABILITIES: Mapping[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (Suite.reference, Suite.checklist, Suite.capabilities,
              Suite.synthetic, Suite.in_context)
}  # fmt: skip
"""What a sandboxed suite takes over from the suite inside; a worker reports the names."""


class SandboxedSuite(Suite):
    """The pool's workers run the episodes; all else is answered by the suite `inside`."""

    def __init__(self, inside: Suite, pool: Pool) -> None:
        self.inside, self._pool = inside, pool
        self.name, self.variant = inside.name, inside.variant
        self.tag_keys, self.world_key = inside.tag_keys, inside.world_key
        self.typical = inside.typical

    def has(self, ability: Callable[..., Any]) -> bool:
        """As the suite inside; of one that asks nobody, a turn's calls are one message. Where a
        user is asked, each call ends by itself, as each is made in a thread of its own."""
        return not self.asks_user() if ability is Suite.act else self.inside.has(ability)

    @property
    def unwrapped(self) -> Suite:
        return self.inside.unwrapped

    def make(self) -> Env:
        return SandboxedEnv(self._pool)

    def close(self) -> None:
        self._pool.close()

    def act(self, calls: Sequence[tuple[Env, Task | Message]]) -> list[Step | Exception]:
        batch = []
        for env, what in calls:
            assert isinstance(env, SandboxedEnv)
            batch.append((env.episode, _call(what)))
        out: list[Step | Exception] = []
        for (env, _), result in zip(calls, self._pool.act(batch), strict=True):
            try:
                out.append(_step(env, result))  # type: ignore[arg-type]
            except EpisodeError as error:
                out.append(error)
        return out

    def splits(self) -> Sequence[str]:
        return self.inside.splits()

    def tasks(self, split: str) -> Sequence[Task]:
        return self.inside.tasks(split)

    def task(self, task_id: str) -> Task:
        return self.inside.task(task_id)

    def about(self) -> Mapping[str, Any]:
        return self.inside.about()

    def asks_user(self) -> bool:
        return self.inside.asks_user()

    def lender(self, split: str) -> Lender | None:
        return self.inside.lender(split)

    def reference(self, task: Task) -> Sequence[Message]:
        return self.inside.reference(task)

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]:
        return self.inside.checklist(task)

    def capabilities(self) -> Sequence[str]:
        return self.inside.capabilities()

    def synthetic(self, capability: str, seed: int) -> Task:
        return self.inside.synthetic(capability, seed)

    def in_context(self, capability: str, seed: int) -> Task:
        return self.inside.in_context(capability, seed)


def remote(pool: Pool, generated: str | None = None) -> SandboxedSuite:
    """A suite that exists only in its worker, such as a benchmark with its own packages.
    `generated`: its name if it comes from generated code; it can then take no other. Raises
    UserError for facts or tasks that are not its own or break a limit."""
    return SandboxedSuite(_Remote(pool, generated), pool)


class _Remote(Suite):
    """The suite in a worker, by remote calls. `abilities`: the names of those that it has."""

    def __init__(self, pool: Pool, generated: str | None) -> None:
        self._pool = pool
        self._read("about", self._describe)
        whole = f"{self.name}/{self.variant}"
        if generated is not None and whole != f"generated/{generated}":
            raise UserError(f"the suite generated/{generated} calls itself {whole!r}.")
        self._envs = (self.name, whole) if generated is None else (whole,)
        self._prefix = "" if generated is None else f"{whole}/"
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def _describe(self, about: Mapping[str, Any]) -> None:
        self.name, self.variant = map(_name, (about["name"], about["variant"]))
        self.abilities = _names(about["abilities"])
        self._splits, self._about = _names(about["splits"]), dict(about["about"])
        self._asks = bool(about["asks_user"])

    def has(self, ability: Callable[..., Any]) -> bool:
        return ability.__name__ in self.abilities

    def _read(self, member: str, read: Callable[[Any], T], *arguments: Any) -> T:
        """What the member of the suite in the worker returns, read by `read`. Raises UserError
        with the worker's error, or if the answer cannot be read."""
        answer = self._pool.query({"do": member, "given": arguments})
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
        for tasks in self._tasks.values():
            for task in tasks:
                if task.id == task_id:
                    return task
        return self._read("task", self._task, task_id)

    def reference(self, task: Task) -> Sequence[Message]:
        return self._read("reference", messages_of, task)

    def checklist(self, task: Task) -> Sequence[Sequence[Mapping[str, Any]]]:
        return self._read("checklist", lambda a: [[dict(i) for i in turn] for turn in a], task)

    def capabilities(self) -> Sequence[str]:
        return self._read("capabilities", _names)

    def synthetic(self, capability: str, seed: int) -> Task:
        return self._read("synthetic", self._task, capability, seed)

    def in_context(self, capability: str, seed: int) -> Task:
        return self._read("in_context", self._task, capability, seed)


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
        boundary = blamed if blamed in IN_EPISODES else Boundary.ENVIRONMENT.value
        raise EpisodeError(boundary, str(error)[:2000])
    return result


class GeneratedSuite(Suite):
    """A suite from generated source code, which defines

        make_task(seed)    a task's data, a JSON-safe dict; the same seed gives the same data
        reference(data)    the assistant messages that earn the full reward, in order
        Env                a class with reset(task) and step(action) -> Step

    and may import only `trace_bench.core.types` and plain modules of the standard library. It must
    run in a sandbox (`choose`). `name`: capability and attempt, unique in a run.

    Raises ValueError that names what the source does not define."""

    def __init__(self, name: str, space: Mapping[str, Any]) -> None:
        if missing := [n for n in NAMES if not callable(space.get(n))]:
            raise ValueError(f"the module does not define {', '.join(missing)}")
        self.name, self.variant = "generated", name
        self._space = space

    def splits(self) -> Sequence[str]:
        return (SPLIT,)

    def tasks(self, split: str) -> Sequence[Task]:
        return [self.synthetic("", seed) for seed in range(_SHOWN)]

    def task(self, task_id: str) -> Task:
        return self.synthetic("", int(task_id.rpartition("/")[2]))

    def capabilities(self) -> Sequence[str]:
        return (self.variant,)

    def synthetic(self, capability: str, seed: int) -> Task:
        """The task of a seed. The suite has one capability, so its name is ignored."""
        env = f"{self.name}/{self.variant}"
        data = self._space["make_task"](seed)
        if not isinstance(data, dict):
            raise ValueError(f"make_task({seed}) gives {type(data).__name__}, not a dict")
        return Task(f"{env}/{seed}", env, SPLIT, seed, data)

    def make(self) -> Env:
        return _Generated(self._space["Env"]())

    def reference(self, task: Task) -> Sequence[Message]:
        return list(self._space["reference"](dict(task.data)))


class _Generated(Env):
    """What a program's environment has: `reset` and `step`."""

    def __init__(self, inside: Any) -> None:
        self._inside = inside

    def reset(self, task: Task) -> Step:
        step: Step = self._inside.reset(task)
        return step

    def step(self, action: Message) -> Step:
        step: Step = self._inside.step(action)
        return step
