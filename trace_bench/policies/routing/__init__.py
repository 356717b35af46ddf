"""Which adapter acts: one file a route, with its settings, how it is fitted to the adapters that
were trained, and how it chooses. `fit` gets what it learns from as an argument (`Evidence`), so
that nothing here imports the methods; the router is built from the plain JSON that it gives
(`router.py`), so that an agent can be run without the method that made it. What every route has is
here. What trains the gate is in `methods/trace/gate.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Need, State
from trace_bench.core.types import AdapterRef, Task

AT_SERVERS = "Servers show no hidden states: set `policy` to local, or `method.route` to zero_shot."
"""What to do where a router reads hidden states and the policy shows none."""


@dataclass(frozen=True)
class Expert:
    """An adapter that was trained for the capability `name`, on these tasks."""

    name: str
    description: str  # of the capability
    tasks: tuple[Task, ...]
    adapter: AdapterRef

    def side(self, contrast: bool) -> list[Task]:
        """Its tasks that are contrast cases, or those that are none."""
        return [t for t in self.tasks if bool(t.data.get("contrast", False)) == contrast]


class Evidence(Protocol):
    """What routes are learned from: nothing of the target tasks. `otherwise`: the base agent's
    adapter, from which all others were trained on, and which acts where none is chosen. `fitted`:
    keeps what was fitted, by the experts' names, since training asks for a router after each of its
    iterations."""

    otherwise: str | None
    fitted: dict[tuple[str, ...], dict[str, Any]]

    def states(self, tasks: Sequence[Task]) -> Sequence[State]:
        """The base model's final hidden states at the end of the tasks' openings; without those
        that cannot be opened."""

    def log(self, text: str) -> None: ...


@dataclass(frozen=True)
class Route:
    """A way to choose. `asks`: every episode first asks the base model."""

    asks: ClassVar[bool] = False

    @property
    def needs(self) -> tuple[Need, ...]:
        return ()

    def fit(self, experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
        """The router as JSON, without `otherwise`."""
        raise NotImplementedError

    def router(self, experts: Sequence[Expert], evidence: Evidence) -> dict[str, Any]:
        """The router as JSON."""
        otherwise = evidence.otherwise
        instead = {} if otherwise is None else {"otherwise": otherwise}
        return {**self.fit(experts, evidence), **instead}


def check_examples(examples: Sequence[object]) -> None:
    """Raises UserError where there is nothing to learn from."""
    if not examples:
        raise UserError(
            "no opening of the synthetic tasks could be read, so the router has no examples. Set "
            "`method.route` to linear, or raise `method.synthetic_tasks`."
        )
