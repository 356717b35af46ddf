"""Environments, and what several share. `settings.registry` finds them; `check` tests that one
satisfies the protocol."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from trace_bench.core.errors import EpisodeError, UserError, unknown
from trace_bench.core.protocols import Ask, Env, Suite
from trace_bench.core.types import Boundary, Message, Milestone, Score, Step, StopReason, Task


class LiveEnv(Env):
    """An environment whose `reset` sets `_live`, and whose episode is over after `end`."""

    _live = False

    @abstractmethod
    def act(self, action: Message, calls: list[Any], text: str) -> Step:
        """What comes of the agent's message, with its calls and its text."""

    def step(self, action: Message) -> Step:
        if not self._live:
            raise EpisodeError(Boundary.ENVIRONMENT, "step without a running episode; reset first")
        calls, text = action.get("tool_calls") or (), action.get("content")
        listed = list(calls) if isinstance(calls, list | tuple) else [calls]
        return self.act(action, listed, text if isinstance(text, str) else "")

    def end(self, stop: StopReason, messages: tuple[Message, ...] = ()) -> Step:
        self._live = False
        return Step(messages, done=True, score=self.score(), stop=stop)

    def close(self) -> None:
        self._live = False


class EitherEnv(Env):
    """The environment that `make` gives for the task, of a suite with several kinds of tasks."""

    def __init__(self, make: Callable[[Task], Env]) -> None:
        self._make = make
        self._env: Env | None = None

    def reset(self, task: Task) -> Step:
        self.close()
        self._env = self._make(task)
        return self._env.reset(task)

    def step(self, action: Message) -> Step:
        if self._env is None:
            raise EpisodeError(Boundary.ENVIRONMENT, "step without a running episode; reset first")
        return self._env.step(action)

    def score(self) -> Score:
        return Score(0.0, False) if self._env is None else self._env.score()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def met(name: str, hit: bool, place: int | None = None, tells: str | None = None) -> Milestone:
    """A milestone that is met or not."""
    return Milestone(name, float(hit), hit, place, tells)


class SplitsByNumber(Suite):
    """A suite whose tasks are the numbers of its splits ("name/variant/dev/0007"): `sizes`."""

    sizes: Mapping[str, int]

    @abstractmethod
    def data_of(self, split: str, number: int) -> Mapping[str, Any]:
        """What the environment needs to begin the task with that number in a split."""

    def splits(self) -> Sequence[str]:
        return tuple(self.sizes)

    def tasks(self, split: str) -> list[Task]:
        if split not in self.sizes:
            raise unknown("split", split, self.sizes, "env.train_split or evaluation.split")
        return [self._of(split, number) for number in range(self.sizes[split])]

    def task(self, task_id: str) -> Task:
        rest, _, number = task_id.rpartition("/")
        if number.isdecimal() and len(number) < 16:
            task = self._made(rest.rpartition("/")[2], int(number))
            if task and task.id == task_id:
                return task
        raise UserError(f"no task {task_id!r} in {self.name}/{self.variant}.")

    def _made(self, kind: str, number: int) -> Task | None:
        return self._of(kind, number) if number < self.sizes.get(kind, 0) else None

    def _of(self, split: str, number: int) -> Task:
        name = f"{self.name}/{self.variant}/{split}/{number:04d}"
        return Task(name, self.name, split, number, self.data_of(split, number))


def task_named(suite: Suite, task_id: str) -> Task:
    """The task of that id in one of the suite's splits. Raises UserError if there is none."""
    for split in suite.splits():
        for task in suite.tasks(split) if f"/{split}/" in task_id else ():
            if task.id == task_id:
                return task
    raise UserError(f"no task {task_id!r} in {suite.name}/{suite.variant}.")


def package_folder(env: str, package: str, version: str, install: str, *modules: str) -> Path:
    """Where the first of a benchmark's modules is. Raises UserError if one is missing, or the
    package has another version than the tested one. `install`: how to get it."""
    try:
        installed = metadata.version(package)
        place, *_ = [import_module(name).__file__ for name in modules]
    except (metadata.PackageNotFoundError, ImportError) as error:
        raise UserError(
            f"env={env} needs {package} {version}: {install}, or sandbox=docker with the image of "
            f"`python -m trace_bench.sandbox.build {env}`."
        ) from error
    if installed != version:
        raise UserError(
            f"env={env} was measured with {package} {version}, and {installed} is installed: its "
            f"tasks may differ. Install that version: {install}."
        )
    return Path(str(place)).parent


SECOND_CHANCES = 2
# Identifiers that a user cannot derive: addresses, order and reservation numbers, user ids, phone
# numbers. Dates, prices and counts are left out, since a user may compute those.
_IDENTIFIER = re.compile(
    r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"
    r"|#\w*\d\w*"
    r"|\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{5,}\b"
    r"|\b[a-z]+_[a-z]+_\d+\b"
    r"|\b\d{7,}\b"
    r"|\b\d{3}-\d{3}-\d{4}\b"
)


class CarefulAsk:
    """Asks the model that plays the user for its message, and again where that is at fault.

    A user is at fault if it ends the conversation before it states its request, sends an empty
    message, or names an identifier that occurs neither in its instructions nor in the conversation:
    the episode would then differ from the scored task. The user gets a note and a second attempt;
    if that fails too, the episode is a failure of the user and not of the agent. `faults` counts
    the rejected answers."""

    def __init__(self, ask: Ask, stops: Sequence[str]) -> None:
        self._ask, self._stops = ask, tuple(stops)
        self.faults = 0

    def __call__(self, messages: Sequence[Mapping[str, Any]], opening: bool) -> str:
        """The user's next message. `messages`: the conversation from the user's side; `opening`:
        whether it is the first message. Raises EpisodeError(USER)."""
        talk = list(messages)
        for _ in range(SECOND_CHANCES + 1):
            text = self._ask("user", talk)
            fault = self._fault(text, messages, opening)
            if fault is None:
                return text
            self.faults += 1
            note = f"(To the model that plays the user: {fault} Answer again, as the user.)"
            talk += [{"role": "assistant", "content": text}, {"role": "user", "content": note}]
        raise EpisodeError(Boundary.USER.value, f"the simulated user is at fault: {fault}")

    def _fault(self, text: str, messages: Sequence[Mapping[str, Any]], opening: bool) -> str | None:
        if not text.strip():
            return "You said nothing."
        if opening and any(stop in text for stop in self._stops):
            return "You ended the conversation before you said what you want."
        if strange := invented(text, [str(m.get("content") or "") for m in messages]):
            return f"Nobody has told you {', '.join(strange[:3])}; do not make up identifiers."
        return None


def invented(text: str, texts: Sequence[str]) -> list[str]:
    """Identifiers in `text` that occur in none of the known texts, in any spelling."""
    names = _IDENTIFIER.findall(text)
    there = _plain("\n".join(texts)) if names else ""  # all that was said: the dear part
    return [name for name in names if _plain(name) not in there]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
