"""An agent that an earlier run made, to be evaluated under other settings: through servers, on
another split, with other decoding. Spends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trace_bench.core.agent_file import read_agent
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, MethodPlan, PlannedRun
from trace_bench.core.store import file_hash
from trace_bench.core.types import AgentSpec, Task

FILE = "agent.json"


@dataclass(frozen=True)
class SavedSettings:
    """`method.*` of `method=saved`."""

    agent: str
    """A run folder, or its agent.json."""
    sha256: str | None = None
    """The hash of the stored agent, so that another agent is another run. Always computed: what is
    given here does not count."""

    def __post_init__(self) -> None:
        if not self.agent:
            raise UserError("method=saved needs method.agent: a run folder, or its agent.json.")
        object.__setattr__(self, "sha256", file_hash(place(self.agent)))


class Saved:
    """`protocols.Method`."""

    def __init__(self, settings: SavedSettings) -> None:
        self.settings = settings

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The stored agent, on the model of this run."""
        path = place(self.settings.agent)
        agent = stored(path)
        if gone := [a.path for a in agent.adapters if not Path(a.path).is_dir()]:
            raise UserError(
                f"the adapter {gone[0]} is gone, and there is none of its name beside {path}; "
                "change `method.agent`."
            )
        return replace(agent, model=base.model)

    def plan(self, run: PlannedRun) -> MethodPlan:
        """It plays nothing; its adapters are those of the stored agent."""
        agent = stored(place(self.settings.agent))
        kind = (agent.router or {}).get("kind")
        return MethodPlan(
            adapters=len(agent.adapters), routed=kind in ("zero_shot", "both"), learns=False
        )


def stored(path: Path) -> AgentSpec:
    """The agent in a file. UserError when it holds none."""
    try:
        return read_agent(path)
    except UserError as error:
        raise UserError(f"method.agent: {path} holds no agent. {error}") from error


def place(given: str) -> Path:
    """The file of a stored agent. UserError when there is none."""
    path = Path(given)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            f"method.agent={given!r} holds no agent ({path} does not exist); allowed: the folder "
            "of a finished run, or its agent.json. Change `method.agent`."
        )
    return path
