"""An agent that an earlier run made, to be evaluated under other settings: through servers, on
another split, with other decoding. Spends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab
from trace_bench.core.store import file_hash, read_json
from trace_bench.core.types import AgentSpec, Task, agent_from_json

FILE = "agent.json"


class Saved:
    """`protocols.Method`. `agent`: a run folder, or its agent.json."""

    name = "saved"

    def fit(self, base: AgentSpec, tasks: Sequence[Task], lab: Lab) -> AgentSpec:
        """The stored agent, on the model of this run."""
        path = place(str(lab.settings["agent"]))
        agent = agent_from_json(read_json(path))
        adapters = tuple(replace(a, path=_found(a.path, path.parent)) for a in agent.adapters)
        return replace(agent, model=base.model, adapters=adapters)


def settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a hash of the stored agent, so that another agent is another run."""
    given = str(values.get("agent") or "")
    if not given:
        raise UserError("method=saved needs method.agent: a run folder, or its agent.json.")
    return {"agent": given, "sha256": file_hash(place(given))}


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


def _found(adapter: str, folder: Path) -> str:
    """An adapter's folder: where it was, or in the run folder if that has been moved."""
    if Path(adapter).is_dir():
        return adapter
    moved = folder.joinpath("adapters", *Path(adapter).parts[-2:])
    if moved.is_dir():
        return str(moved)
    raise UserError(f"the adapter {adapter} is gone ({moved} neither); change `method.agent`.")
