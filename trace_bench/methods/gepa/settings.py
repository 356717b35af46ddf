"""The numbers of `method=gepa`, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trace_bench.core.errors import UserError


@dataclass(frozen=True)
class GepaSettings:
    """`method.*` of `method=gepa`."""

    minibatch: int = field(default=8, metadata={"low": 1})
    """Training tasks that a proposal is made from and tested on (the package's default is 3: three
    sampled episodes say little about a candidate; on the development split 8 was the better)."""
    validation: int = field(default=24, metadata={"low": 1})
    """Training tasks kept for comparing accepted candidates; the others are for proposals."""
    lines: int = field(default=4, metadata={"low": 1})
    """Most lines of the prompt (the program reflector's)."""
    temperature: float = field(default=1.0, metadata={"low": 0, "high": 2})
    """Sampling temperature of all its rollouts, as in training."""
    reward: Literal["similarity", "success"] = "similarity"
    """Which number of the score is maximized."""
    failures: int = field(default=5, metadata={"low": 1})
    """Failed proposals in a row after which it stops with an error."""

    @property
    def iteration(self) -> int:
        """Most rollouts that one iteration costs: parent and child on the minibatch, the child on
        the validation tasks."""
        return 2 * self.minibatch + self.validation

    def proposals(self, budget: int) -> tuple[int, int]:
        """How many proposals a budget allows: when each is accepted, and when none is."""
        left = budget - self.validation
        return left // self.iteration, left // (2 * self.minibatch)

    def check(self, budget: int, training_tasks: int) -> None:
        """Raises UserError when the budget pays for no proposal or no task is left for them.
        `training_tasks`: 0 when their number is not known."""
        if training_tasks and self.validation >= training_tasks:
            raise UserError(
                f"method.validation={self.validation} leaves nothing of {training_tasks} training "
                f"tasks; allowed: 1 to {training_tasks - 1}. Change `method.validation`."
            )
        need = self.validation + self.iteration
        if budget < need:
            raise UserError(
                f"budget={budget} is too small for method=gepa, which needs at least {need} "
                f"rollouts: {self.validation} for the first prompt on the validation tasks "
                f"(method.validation) and {self.iteration} for one proposal (method.minibatch, "
                "method.validation). Raise `budget` or lower one of these."
            )
