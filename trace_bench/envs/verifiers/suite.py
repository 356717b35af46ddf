"""Tasksets of verifiers v1, played in this process (`env=verifiers env.taskset=...`).

The package itself starts, for each rollout, a harness program, a model's endpoint and a server for
each toolset. A taskset whose tools and rewards need no box has no need of them: its toolsets'
functions are called here, the conversation is written into the trace that its rewards read, and an
episode costs milliseconds. What does need a box, a harness, another model or a loop of its own is
refused when the suite is made, in words.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import islice
from typing import Any

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError, attempt
from trace_bench.core.text import described
from trace_bench.core.types import Message, Task, Tool
from trace_bench.envs import package_folder
from trace_bench.envs.outside import (
    Answer,
    Outside,
    OutsideEnv,
    OutsideSuite,
    digest,
    plain_name,
    refuse,
    reward_of,
)
from trace_bench.envs.outside.loop import Loop
from trace_bench.envs.verifiers.rollout import Rollout, Shared

VERSION = "0.4.0"
EIGHTHS = {"test": (0, 1), "dev": (2,), "train": (3, 4, 5, 6, 7)}
"""Each split's share of the tasks, by the hash of a task's key: the standard has no splits."""
_BOX = ("image", "agent_user", "skills", "artifacts")  # of a task's data


@dataclass(frozen=True, kw_only=True)
class VerifiersSettings(Outside):
    """The worker's interpreter needs verifiers and the taskset's package."""

    taskset: str
    """The taskset's id, as verifiers has it: the name of an installed package, or of a module in
    the working folder."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """The taskset's own settings: 'env.args={game: x}'."""
    splits: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make each split, where the taskset has some:
    'env.splits={train: {split: train}, dev: {split: valid}, test: {split: test}}'. Without it, a
    task's key decides: five eighths of the tasks are train, one dev, two test."""
    most: int = field(default=2000, metadata=number(1))
    """How many tasks are read of a taskset, which may have no end."""


class VerifiersEnv(OutsideEnv):
    """A rollout; the sum of the task's rewards is the one that comes at the end."""

    def __init__(self, settings: VerifiersSettings, suite: VerifiersSuite) -> None:
        super().__init__(settings)
        self._suite = suite
        self._rollout: Any = None  # from `begin` to `close`

    def begin(self, task: Task) -> tuple[Sequence[Message], Sequence[Tool]]:
        found = self._suite.found(task)
        self._loop, shared = self._suite.shared()
        self._rollout = Rollout(found, shared)
        return self._rollout.opening(), self._run(self._rollout.open())

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        return self._run(self._rollout.call(name, arguments))

    def stopped(self) -> bool:
        return self._run(self._rollout.stopped(self.said))

    def ended(self) -> float | None:
        return reward_of(self._run(self._rollout.reward(self.said)))

    def close(self) -> None:
        if self._rollout is not None:
            rollout, self._rollout = self._rollout, None
            attempt(lambda: self._run(rollout.close()))

    def _run(self, work: Awaitable[Any]) -> Any:
        return self._loop.run(work, self._settings.deadline)


class VerifiersSuite(OutsideSuite):
    """The tasks of a taskset. Raises UserError."""

    name = "verifiers"

    def __init__(self, settings: VerifiersSettings) -> None:
        install = f"pip install verifiers=={VERSION}"
        package_folder(self.name, "verifiers", VERSION, install, "verifiers.v1")
        super().__init__(settings)
        self.variant = plain_name(settings.taskset.rpartition("/")[2].partition("@")[0], "taskset")
        made = attempt(self._load)
        if isinstance(made, UserError):
            raise made
        if isinstance(made, BaseException):
            raise UserError(
                f"env.taskset={settings.taskset} cannot be loaded: {described(made)}. Change "
                "`env.taskset`, `env.args` or `env.splits`."
            ) from made
        self.sizes = {split: len(tasks) for split, tasks in self._tasks.items()}
        self._shared: Shared | None = None

    def _load(self) -> None:
        """The tasks by split. Raises UserError for one in two of them, or that cannot be played."""
        from verifiers.v1.utils import loaders

        name, given = self._settings.taskset, self._settings.splits
        self._refuse(_package_needs(name))
        kind = loaders.taskset_config_type(name)
        self._tasks: dict[str, list[Any]] = {split: [] for split in given or sorted(EIGHTHS)}
        seen: dict[str, str] = {}
        for chosen, own in (given or {"": {}}).items():
            config = kind.model_validate({**self._settings.args, **own, "id": name})
            self._taskset = loaders.load_taskset(config)
            for task in islice(self._taskset, self._settings.most):
                self._refuse(_data_needs(task) or (None if seen else _class_needs(task)))
                known = _known(task)
                split = chosen or _bucket(known)
                if seen.setdefault(known, split) != split:
                    raise UserError(
                        f"the task {task.key[:64]} of env.taskset={name} is in {seen[known]} and "
                        f"again in {split}. Change `env.splits`."
                    )
                self._tasks[split].append(task)
        if not seen:
            raise UserError(f"env.taskset={name} has no tasks. Change `env.args`.")
        for toolset in self._taskset.toolsets(config):
            self._refuse(_tools_need(toolset))
        self._specs = {split: [task.hash for task in tasks] for split, tasks in self._tasks.items()}

    def _refuse(self, need: str | None) -> None:
        if need is not None:
            raise UserError(
                f"env.taskset={self._settings.taskset} cannot be played in process: it needs "
                f"{need}, which only verifiers' own runner has. Change `env.taskset`."
            )

    def shared(self) -> tuple[Loop, Shared]:
        """The loop of all episodes, with the toolsets that they share; new ones after a tool that
        has never come back."""
        if self._shared is None or not self._shared.loop.alive():
            self._shared = Shared(Loop(), self._taskset)
        return self._shared.loop, self._shared

    def found(self, task: Task) -> Any:
        """verifiers' own task. Raises EpisodeError where it has changed."""
        split, index = task.data["split"], task.data["index"]
        if self._specs[split][index] != task.data["spec"]:
            refuse(f"the taskset's task {index} of {split} has changed")
        return self._tasks[split][index].with_data()

    def facts(self) -> dict[str, Any]:
        found = attempt(lambda: metadata.version(self.variant))
        version = found if isinstance(found, str) else "without a version"
        return {"data": f"{self.variant} {version}, tasks {digest(self._specs)}"}

    def data_of(self, split: str, number: int) -> Mapping[str, Any]:
        return {"split": split, "index": number, "spec": self._specs[split][number]}

    def make(self) -> VerifiersEnv:
        return VerifiersEnv(self._settings, self)


def _known(task: Any) -> str:
    """What a task is, wherever it stands: its own key, or its data without its place."""
    own: str = task.key
    if own != task.hash:
        return own
    return digest(task.data.model_dump(mode="json", exclude={"idx"}, exclude_none=True))


def _bucket(known: str) -> str:
    eighth = int(digest(known), 16) % 8
    return next(split for split, own in EIGHTHS.items() if eighth in own)


# -- what a taskset needs that is not here ---------------------------------------------------------


def _package_needs(taskset: str) -> str | None:
    """What the package of that id brings to play it with. Raises as verifiers does for an unknown
    one."""
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils import loaders

    if (env := loaders.environment_class(taskset)) is not SingleAgentEnv:
        return f"a loop of its own ({env.__name__}.run)"
    if loaders.default_harness_id(taskset) == taskset:
        return "a harness of its own"
    return None


def _tools_need(toolset: Any) -> str | None:
    """What a toolset needs beyond this process."""
    config = toolset.config
    if getattr(config, "url", None):
        return f"a tool server elsewhere ({config.url})"
    if getattr(config, "colocated", False) or config.runtime.type != "subprocess":
        return f"a box for the tools of {type(toolset).__name__}"
    return None


def _class_needs(task: Any) -> str | None:
    """What the tasks of that one's class and settings need."""
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.trace import Trace
    from verifiers.v1.utils.decorators import discover_decorated

    if task.NEEDS_CONTAINER:
        return "a container"
    steps = [getattr(task, name) for name in ("setup", "finalize") if _own(task, name)]
    for found in (*steps, *task.hooks("reward")):
        if _takes_runtime(found):
            return f"a box, in which {found.__name__} acts"
    if task.plugged_judges():
        return "a model that judges"
    stops = [f for f in task.hooks("stop") if hook_boundary(f, allow_trace=True) is not Trace]
    if stops or discover_decorated(task, "intercept"):
        return "the model's endpoint, whose requests it reads"
    return next(filter(None, map(_tools_need, task.toolsets(task.config))), None)


def _data_needs(task: Any) -> str | None:
    """What one task needs besides."""
    data = task.data
    if boxes := [name for name in _BOX if getattr(data, name)]:
        return f"a box with its {boxes[0]}"
    if data.prompt is None:
        return "a user who opens the conversation"
    return None


def _own(task: Any, name: str) -> bool:
    from verifiers.v1.task import Task

    return getattr(type(task), name) is not getattr(Task, name)


def _takes_runtime(function: Any) -> bool:
    """Whether it cannot be called without a runtime."""
    found = inspect.signature(function).parameters.get("runtime")
    return found is not None and found.default is inspect.Parameter.empty
