"""An environment from a program text, as a suite. The text defines

    make_task(seed)    a task's data, a JSON-safe dict; the same seed gives the same data
    reference(data)    the assistant messages that earn the full reward, in order
    Env                a class as protocols.Env wants it: reset(task) and step(action) give a Step

and may import nothing but `trace_bench.core.types` and plain modules of the standard library. It is
foreign code: it belongs in a box (sandbox/foreign.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.protocols import Env
from trace_bench.core.types import Message, Task

NAMES = ("make_task", "reference", "Env")
SPLIT = "seeds"
_SHOWN = 16  # tasks of the split, for whoever asks for tasks and not for seeds


class GeneratedSuite:
    """`protocols.Suite` and a generator of tasks. `name`: capability and attempt, unique in a run.

    Raises ValueError naming what the text does not define."""

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

    def synthetic(self, capability: str, seed: int) -> Task:
        """The task of a seed. There is one capability, so its name says nothing."""
        env = f"{self.name}/{self.variant}"
        data = self._space["make_task"](seed)
        if not isinstance(data, dict):
            raise ValueError(f"make_task({seed}) gives {type(data).__name__}, not a dict")
        return Task(f"{env}/{seed}", env, SPLIT, seed, data)

    def make(self) -> Env:
        made: Env = self._space["Env"]()
        return made

    def reference(self, task: Task) -> Sequence[Message]:
        return list(self._space["reference"](dict(task.data)))
