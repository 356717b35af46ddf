"""A suite from generated source code. The source defines

    make_task(seed)    a task's data, a JSON-safe dict; the same seed gives the same data
    reference(data)    the assistant messages that earn the full reward, in order
    Env                a class with reset(task) and step(action) -> Step

and may import only `trace_bench.core.types` and plain modules of the standard library. It is
generated code and must run in a sandbox (sandbox/choose.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.protocols import Env, Suite
from trace_bench.core.types import Message, Step, Task

NAMES = ("make_task", "reference", "Env")
SPLIT = "seeds"
_SHOWN = 16  # number of tasks in the split; further ones are made by seed


class GeneratedSuite(Suite):
    """`name`: capability and attempt, unique in a run.

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
