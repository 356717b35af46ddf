"""The embedded phone world with what goes wrong in a job of verl, for its workers: files in a
folder say what, so that a test can change it while the job runs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.types import Message, Score, Step, Task
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite

SAME = 2 / 3  # what every episode of a task in `constant` earns


class World(EmbeddedSuite):
    """`folder`/constant: the ids of tasks whose episodes all earn the same; `folder`/outage: while
    it is there, no episode of the split train begins. `failing`: the share of the others that
    raise; `hangs`: whether some of them never answer."""

    def __init__(self, folder: str, failing: float = 0.0, hangs: bool = False) -> None:
        super().__init__()
        self.folder, self.failing, self.hangs = Path(folder), failing, hangs

    def make(self) -> Any:
        constant = self.folder / "constant"
        tasks = constant.read_text().split() if constant.exists() else ()
        return Faulty(self.folder / "outage", tasks, self.failing, self.hangs)


class Faulty(ToolSandboxEnv):
    def __init__(self, outage: Path, alike: Collection[str], failing: float, hangs: bool) -> None:
        super().__init__()
        self.outage, self.constant, self.failing, self.hangs = outage, alike, failing, hangs

    def reset(self, task: Task) -> Step:
        training = task.split == "train"
        if training and self.outage.exists():
            raise OSError("the line is dead")
        drawn = random.Random(os.urandom(8))  # another each time, as faults are
        self.fails = training and drawn.random() < self.failing
        self.stops = training and self.hangs and drawn.random() < 0.05
        self.level = task.id in self.constant
        return super().reset(task)

    def step(self, action: Message) -> Step:
        if self.stops:
            time.sleep(600)
        if self.fails:
            raise RuntimeError("the environment broke")
        return super().step(action)

    def score(self) -> Score:
        score = super().score()
        return replace(score, similarity=SAME, success=False) if self.level else score
