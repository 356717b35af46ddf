"""Two worlds as one suite, BabyAI and frozen lakes: an agent that acts in both, trained in some.

The environment of the experiment beside it, which run.sh runs. It needs
`pip install '.[babyai,textarena]'`. `learn` names the worlds whose tasks are trained on; those for
development and evaluation are always of both, in turn, and every table has the figures of each.
"""

from dataclasses import replace
from functools import cache

import trace_bench as tb
from trace_bench.envs import task_named
from trace_bench.envs.babyai import BabyAISuite
from trace_bench.envs.textarena import TextArenaSuite

WORLDS = {"babyai": BabyAISuite, "lakes": TextArenaSuite}
SIZES = {"demo": 2000, "train": 256, "dev": 128, "test": 200}  # each world's first in its own split


@cache
def world(name: str) -> tb.Suite:
    return WORLDS[name]()


def inside(task: tb.Task) -> tuple[tb.Suite, tb.Task]:
    """The world of a task, and the task as one of that world's."""
    suite = world(task.data["world"])
    return suite, replace(task, env=suite.name)


class Either(tb.Env):
    """One episode after the other, each in the world of its task."""

    def reset(self, task: tb.Task) -> tb.Step:
        suite, own = inside(task)
        self.env = suite.make()
        return self.env.reset(own)

    def step(self, action: tb.Message) -> tb.Step:
        return self.env.step(action)

    def score(self) -> tb.Score:
        return self.env.score()

    def solution(self) -> list[tb.Message]:
        return list(self.env.solution())


class Suite(tb.Suite):
    name, variant, world_key = "together", "babyai-lakes", "world"

    def __init__(self, learn: tuple[str, ...] = ("babyai", "lakes")) -> None:
        if not learn or not {*learn} <= {*WORLDS}:
            raise tb.UserError(f"env.options.learn={list(learn)}; allowed: some of {[*WORLDS]}.")
        self.learn = learn

    def splits(self) -> list[str]:
        return [*SIZES]

    def tasks(self, split: str) -> list[tb.Task]:
        """Those of one world and of the other in turn."""
        names = self.learn if split == "train" else WORLDS
        found = [self._of(split, name) for name in WORLDS if name in names]
        return [task for some in zip(*found, strict=True) for task in some]

    def task(self, task_id: str) -> tb.Task:
        return task_named(self, task_id)

    def make(self) -> Either:
        return Either()

    def reference(self, task: tb.Task) -> list[tb.Message]:
        suite, own = inside(task)
        return list(suite.reference(own))

    def _of(self, split: str, name: str) -> list[tb.Task]:
        """A world's tasks under names of this suite's own."""
        return [
            tb.Task(f"together/{split}/{name}/{n:04d}", self.name, split, task.seed,
                    {**task.data, "world": name})
            for n, task in enumerate(world(name).tasks(split)[: SIZES[split]])
        ]  # fmt: skip
