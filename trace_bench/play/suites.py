"""Several suites played together: each task goes to the environment that it names."""

from __future__ import annotations

from trace_bench.core.protocols import Suite
from trace_bench.core.types import Task


class Several:
    """The target, and beside it suites whose tasks' `env` is the key that they were added under.
    `rollouts.play` takes it in the place of a suite."""

    def __init__(self, target: Suite) -> None:
        self.target = target
        self.others: dict[str, Suite] = {}

    def of(self, task: Task) -> Suite:
        """The suite that plays a task."""
        return self.others.get(task.env, self.target)

    def close(self) -> None:
        """Closes the suites that were added."""
        for suite in self.others.values():
            getattr(suite, "close", lambda: None)()
        self.others = {}
