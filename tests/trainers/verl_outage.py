"""The embedded phone world with an outage, for a job in verl's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_bench.core.protocols import Env
from trace_bench.core.types import Message, Step, Task
from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite


class Outage(EmbeddedSuite):
    """While there is a file at `flag`, only as many episodes can begin in a process as it says."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self.flag, self.made = Path(flag), 0

    def make(self) -> Any:
        self.made += 1
        gone = self.flag.exists() and self.made > int(self.flag.read_text())
        return Gone() if gone else super().make()


class Gone(Env):
    def reset(self, task: Task) -> Step:
        raise OSError("the line is dead")

    def step(self, action: Message) -> Step:
        raise OSError("the line is dead")
