"""The phone world, or one of the domains beside it: each task says which."""

from __future__ import annotations

from trace_bench.core.types import Message, Score, Step, Task
from trace_bench.envs.domains.env import DomainEnv
from trace_bench.envs.toolsandbox.env import ToolSandboxEnv


class AnyWorld:
    """Implements `protocols.Env` and `ScoresAlone` by the environment of the current task."""

    def __init__(self) -> None:
        self._env: ToolSandboxEnv | DomainEnv = ToolSandboxEnv()

    def reset(self, task: Task) -> Step:
        self._env = DomainEnv() if "domain" in task.data else ToolSandboxEnv()
        return self._env.reset(task)

    def step(self, action: Message) -> Step:
        return self._env.step(action)

    def score(self) -> Score:
        return self._env.score()

    def close(self) -> None:
        self._env.close()
