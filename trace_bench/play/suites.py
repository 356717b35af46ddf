"""Several suites in one: each task goes to the environment that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trace_bench.core.errors import TraceBenchError, UserError
from trace_bench.core.protocols import AsksUser, Closes, Describes, Suite
from trace_bench.core.store import canonical
from trace_bench.core.types import Task


class Suites:
    """The target suite and further suites, each added under the key that its tasks have as `env`.
    `rollouts.play` accepts it in place of a suite."""

    def __init__(self, target: Suite, others: Mapping[str, Suite] | None = None) -> None:
        self.target = target
        self._others = dict(others or {})

    def __iter__(self) -> Iterator[Suite]:
        yield self.target
        yield from self._others.values()

    def of(self, task: Task) -> Suite:
        """The suite of a task."""
        return self._others.get(task.env, self.target)

    def add(self, key: str, suite: Suite) -> None:
        """Adds a suite for the tasks whose `env` is `key`."""
        self._others[key] = suite

    def drop(self, key: str) -> None:
        """Closes and removes the suite with that key, if there is one."""
        suite = self._others.pop(key, None)
        if isinstance(suite, Closes):
            suite.close()

    def close(self) -> None:
        """Closes the added suites. The target suite is closed by its owner."""
        for key in list(self._others):
            self.drop(key)


def asks_user(suite: Suite) -> bool:
    """Whether this suite's episodes may wait for a model that plays the user."""
    return isinstance(suite, AsksUser) and suite.asks_user()


def about_of(suite: Suite) -> dict[str, Any]:
    """What a suite says of itself; nothing for one that does not. Raises UserError when that is no
    JSON: a table could not be written at the end."""
    if not isinstance(suite, Describes):
        return {}
    try:
        about = dict(suite.about())
        canonical(about)
        return about
    except Exception as error:
        raise _broken(suite, f"about() is not JSON-safe: {error}") from error


def splits_of(suite: Suite) -> list[str]:
    """The names of a suite's splits. Raises UserError for a suite that does not give them."""
    if not (isinstance(suite.name, str) and isinstance(suite.variant, str)):
        raise _broken(suite, "name and variant must be texts")
    found = _asked(suite, "splits()", suite.splits)
    if not all(isinstance(name, str) for name in found):
        raise _broken(suite, f"splits() gives {found!r}, and texts are needed")
    return found


def tasks_of(suite: Suite, split: str, some: bool = True) -> list[Task]:
    """The tasks of a split, in order. Raises UserError for a suite that gives none (unless `some`
    is False), something else, or two of one id."""
    call = f"tasks({split!r})"
    found = _asked(suite, call, lambda: suite.tasks(split))
    if some and not found:
        raise _broken(suite, f"{call} gives no task")
    if others := [type(task).__name__ for task in found if not isinstance(task, Task)]:
        raise _broken(suite, f"{call} gives {others[0]}, and trace_bench.Task is needed")
    ids = {task.id for task in found}
    if len(ids) < len(found):
        raise _broken(suite, f"{call} gives {len(found)} tasks with {len(ids)} ids")
    return found


def _asked(suite: Suite, call: str, ask: Callable[[], Sequence[Any]]) -> list[Any]:
    """What a suite answers; a suite may be a stranger's, and unfinished."""
    try:
        return list(ask())
    except TraceBenchError:
        raise
    except Exception as error:
        raise _broken(suite, f"{call} raised {type(error).__name__}: {error}") from error


def _broken(suite: Suite, what: str) -> UserError:
    return UserError(
        f"the suite {suite.name}/{suite.variant} cannot be used: {what}. Change `env`; "
        "docs/environments.md says what a suite must give."
    )
