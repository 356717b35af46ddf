"""Reads the agent that a run has stored, agent.json, wherever its folder lies by now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, Unreadable, fault_of
from trace_bench.core.run_files import REPAIRS
from trace_bench.core.store import read_json
from trace_bench.core.types import AgentSpec

PROMPT = Limits(2**18)
"""Of an agent's prompt: more than any context holds."""


def read_agent(path: Path) -> AgentSpec:
    """The agent in a file. An adapter that lies in the folder of the file is the one meant, so that
    a copied run uses its own; else the one where the file says. Raises UserError."""
    try:
        agent = convert(read_json(path), AgentSpec)
        if fault := fault_of(agent.prompt, PROMPT):
            raise Unreadable(f"`prompt`: {fault}")
        return placed(agent, path.parent)
    except Unreadable as error:
        raise UserError(f"{path} holds no agent ({error}). {REPAIRS['agent.json']}") from error


def placed(agent: AgentSpec, folder: Path) -> AgentSpec:
    """The agent with the adapters that lie in the folder, where they do."""
    adapters = tuple(replace(a, path=_place(a.path, folder)) for a in agent.adapters)
    return replace(agent, adapters=adapters)


def _place(adapter: str, folder: Path) -> str:
    own = folder.joinpath("adapters", *Path(adapter).parts[-2:])
    return str(own) if own.is_dir() else adapter
