"""Reads the agent that a run has stored, agent.json, wherever its folder lies by now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.store import read_object
from trace_bench.core.types import AgentSpec, agent_from_json


def read_agent(path: Path) -> AgentSpec:
    """The agent in a file. An adapter that lies in the folder of the file is the one meant, so that
    a copied run uses its own; else the one where the file says. Raises UserError."""
    try:
        return placed(agent_from_json(read_object(path)), path.parent)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} holds no agent ({type(error).__name__}: {error}). {REPAIRS['agent.json']}"
        ) from error


def placed(agent: AgentSpec, folder: Path) -> AgentSpec:
    """The agent with the adapters that lie in the folder, where they do."""
    adapters = tuple(replace(a, path=_place(a.path, folder)) for a in agent.adapters)
    return replace(agent, adapters=adapters)


def _place(adapter: str, folder: Path) -> str:
    own = folder.joinpath("adapters", *Path(adapter).parts[-2:])
    return str(own) if own.is_dir() else adapter
