"""The numbers of `method=gepa`, each with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
    merge: bool = False
    """Whether two candidates of the Pareto front may be merged (the package's default: no). The
    package merges by component, and the agent has one, its prompt: here it finds nothing to do."""
    temperature: float = field(default=1.0, metadata={"low": 0, "high": 2})
    """Sampling temperature of all its rollouts, as in training."""
    reward: Literal["similarity", "success"] = "similarity"
    """Which number of the score is maximized."""
    failures: int = field(default=5, metadata={"low": 1})
    """Failed proposals in a row after which it stops with an error."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GepaSettings:
        """Settings from the configuration, which was checked when it entered the program."""
        return cls(**{k: v for k, v in values.items() if k != "name"})

    @property
    def iteration(self) -> int:
        """Most rollouts that one iteration costs: parent and child on the minibatch, the child on
        the validation tasks; a merge is tested on up to 5 of those first."""
        return 2 * self.minibatch + self.validation + (5 if self.merge else 0)

    def check(self, budget: int, training_tasks: int) -> None:
        """Raises UserError when the budget pays for no proposal or no task is left for them."""
        if self.validation >= training_tasks:
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
