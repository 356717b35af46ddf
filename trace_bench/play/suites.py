"""Several suites in one: each task goes to the environment that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trace_bench.core.errors import TraceBenchError, UserError, attempt, unknown
from trace_bench.core.protocols import Suite
from trace_bench.core.store import canonical, fingerprint, stable_seed
from trace_bench.core.text import described, visible
from trace_bench.core.types import Score, Task, Turn

GENERATED = "generated/"
DEMO = "demo"  # the split for demonstrations, of suites that have one


def generated_key(name: str) -> str:
    return GENERATED + name


@dataclass(eq=False)
class Suites:
    """The target suite, and others by their tasks' `env`. `lots`: scores drawn by lot. `held_out`:
    the tasks of the evaluation, in the form that they have when the run begins; `reserved`: nothing
    else may play them."""

    target: Suite
    others: dict[str, Suite] = field(default_factory=dict)
    lots: bool = False
    held_out: Sequence[Task] = ()
    reserved: bool = True

    def __post_init__(self) -> None:
        self._marks = {task.id: mark(task) for task in self.held_out}
        self._contents = set(self._marks.values())

    def __iter__(self) -> Iterator[Suite]:
        yield self.target
        yield from self.others.values()

    def of(self, task: Task) -> Suite:
        """The suite of a task. Raises ValueError for a task of a generated suite that is gone."""
        if task.env.startswith(GENERATED) and task.env not in self.others:
            raise ValueError(f"the suite {task.env} of task {task.id} is not in use")
        return self.others.get(task.env, self.target)

    def check_open(self, tasks: Iterable[Task]) -> None:
        """Raises UserError for a task that is reserved, by its id or by its content."""
        if not self.reserved or not self._marks:
            return
        for task in {task.id: task for task in tasks if task.env not in self.others}.values():
            if task.id in self._marks or mark(task) in self._contents:
                raise UserError(
                    f"the method would play {task.id}, which is held out or has the content of a "
                    "task that is. Change `method`, or the splits (`env.train_split`, "
                    "`evaluation.split`); protocol=paper trains on the tasks that it reports on."
                )

    def check_unchanged(self) -> None:
        """Raises UserError if a held-out task is no longer what it was when the run began."""
        for task in self.held_out:
            if mark(task) != self._marks[task.id]:
                raise UserError(
                    f"the held-out task {task.id} was changed during the run, so scores before and "
                    "after cannot be compared. Change `env` or `method`: nothing may write to "
                    "task.data."
                )

    def scored(self, task: Task, turns: Sequence[Turn], score: Score) -> Score:
        """The score of an episode: the environment's, or a lot by what was said, for checks too."""
        if not self.lots or task.env in self.others:
            return score
        drawn = stable_seed("lots", task.id, [turn.reply for turn in turns])
        tenths, heard = drawn % 10, any(turn.malformed is None for turn in turns)
        checks = [
            replace(check, step=0 if heard and drawn >> i & 8 else None)
            for i, check in enumerate(score.checks)
        ]
        return Score(1.0 if tenths > 4 else tenths / 10, tenths > 4, checks=tuple(checks))

    def add(self, key: str, suite: Suite) -> None:
        self.others[key] = suite

    def drop(self, key: str) -> None:
        if (suite := self.others.pop(key, None)) is not None:
            suite.close()

    def close(self) -> None:
        """Closes the added suites. The target suite is closed by its owner."""
        for key in list(self.others):
            self.drop(key)


def name_of(suite: Suite) -> str:
    """`name/variant` as the suite states them, in a form that a line of a table can hold."""
    return visible(f"{suite.name}/{suite.variant}").replace("\n", " ")[:100]


def about_of(suite: Suite) -> dict[str, Any]:
    """The facts that a suite reports. Raises UserError if it raises or they are not JSON-safe."""

    def asked() -> dict[str, Any]:
        about = dict(suite.about())
        canonical(about)
        return about

    about = attempt(asked)
    if isinstance(about, BaseException):
        why = f"about() raised or is not JSON-safe ({described(about)})"
        raise _broken(suite, why) from about
    return about


def splits_of(suite: Suite) -> list[str]:
    """The names of a suite's splits. Raises UserError if it raises or returns no strings."""
    if not (isinstance(suite.name, str) and isinstance(suite.variant, str)):
        raise _broken(suite, "name and variant must be strings")
    names = _asked(suite, "splits()", suite.splits)
    if not all(isinstance(name, str) for name in names):
        raise _broken(suite, f"splits() must return strings, got {names!r}")
    return names


def chosen_of(suite: Suite, split: str) -> str:
    """The split, which a command was given. Raises UserError if there is none of that name."""
    if split not in (there := splits_of(suite)):
        raise unknown("split", split, there, "split")
    return split


def needed(tasks: Sequence[Task]) -> Sequence[Task]:
    """The training tasks. Raises UserError where there are none."""
    if not tasks:
        raise UserError("there is no training task. Change `env.train_split`.")
    return tasks


def tasks_of(suite: Suite, split: str, some: bool = True) -> list[Task]:
    """The tasks of a split, in order. Raises UserError if `tasks` raises, returns none (unless
    `some` is False), anything but tasks, or two tasks with the same id."""
    call = f"tasks({split!r})"
    tasks = _asked(suite, call, lambda: suite.tasks(split))
    if some and not tasks:
        raise _broken(suite, f"{call} returned no tasks")
    if others := [type(task).__name__ for task in tasks if not isinstance(task, Task)]:
        raise _broken(suite, f"{call} returned {others[0]} instead of trace_bench.Task")
    ids = {task.id for task in tasks}
    if len(ids) < len(tasks):
        raise _broken(suite, f"{call} returned {len(tasks)} tasks with only {len(ids)} ids")
    return tasks


def in_both(suite: Suite, first: str, second: str) -> list[str]:
    """The ids of the tasks of split `second` whose content `first` has too. Raises UserError."""
    contents = {content(task) for task in tasks_of(suite, first, some=False)}
    return [task.id for task in tasks_of(suite, second, some=False) if content(task) in contents]


def tags(task: Task, keys: Sequence[str]) -> list[str]:
    return [str(word) for key in keys for word in task.data.get(key, ())]


def content(task: Task) -> str:
    """What makes a task the same as another one."""
    if not task.data:
        return f"seed {task.seed}"
    try:
        return canonical(task.data)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the data of task {task.id} is not JSON-safe ({error}). Change `env`."
        ) from error


def mark(task: Task) -> str:
    return fingerprint({"task": content(task)})


def _asked(suite: Suite, call: str, ask: Callable[[], Sequence[Any]]) -> list[Any]:
    """Calls a suite's method. An exception becomes a UserError that names the call."""
    answer = attempt(lambda: list(ask()))
    if isinstance(answer, TraceBenchError):
        raise answer
    if isinstance(answer, BaseException):
        raise _broken(suite, f"{call} raised {described(answer)}") from answer
    return answer


def _broken(suite: Suite, what: str) -> UserError:
    return UserError(
        f"the suite {suite.name}/{suite.variant} cannot be used: {what}. Change `env`; "
        "docs/environments.md says what a suite must return."
    )
