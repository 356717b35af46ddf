"""An agent that is evaluated over HTTP has the outcomes that it has in process, task by task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from models import save_adapter
from servers.agent import local, routed_agent, serving

from trace_bench.core.beginning import read_beginning
from trace_bench.core.store import read_lines
from trace_bench.runner.pipeline import carry_out
from trace_bench.settings.compose import compose
from trace_bench.tiny import MODEL_FOLDER

TASKS = 12


def outcomes(folder: Path) -> dict[str, Any]:
    """The outcome of every task, and what the agent said in it."""
    kept = ("score", "stop", "turns", "malformed")
    lines = read_lines(folder / "evaluation.jsonl")
    found = {e["task"]: {k: e.get(k) for k in kept} for e in lines if e["agent"] == "final"}
    for line in read_lines(folder / "evaluation_trajectories.jsonl"):
        if line["call"] == "evaluation/base":
            turns = line["trajectory"]["turns"]
            said = [(t["reply"]["content"].strip(), t["reply"].get("tool_calls")) for t in turns]
            found[line["trajectory"]["task"]]["said"] = said
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny agent, with two adapters that change what it says, and a router."""
    adapters = {}
    for seed, name in enumerate(("a", "b"), 1):
        adapters[name] = save_adapter(MODEL_FOLDER, tmp_path / name, seed, scale=0.02)
    routed_agent(tmp_path / "agent", MODEL_FOLDER, adapters)
    return tmp_path / "agent"


@pytest.mark.slow
def test_the_served_agent_has_the_same_outcomes(folder: Path, tmp_path: Path) -> None:
    common = ["method=base", f"evaluation.limit={TASKS}", "evaluation.routing=false",
              "checkpoints=[]"]  # fmt: skip
    carry_out(compose([*common, f"agent={folder}", f"run_dir={tmp_path / 'here'}"]))
    agent = read_beginning(str(folder)).agent
    with serving(local(MODEL_FOLDER, agent, batch=16, most=96)) as served:
        there = ["policy=openai", f"policy.base_url={served.url}/v1", "policy.batch=16"]
        named = ["model=served", "model.name=agent"]
        carry_out(compose([*common, *there, *named, f"run_dir={tmp_path / 'there'}"]))
        assert {line.split(",")[0].split()[1] for line in served.lines} == {"200"}
        acted = {line.partition("adapter ")[2].partition(",")[0] for line in served.lines}
    assert acted >= {a.name for a in agent.adapters}, "the router chooses one adapter only"
    here, over_http = outcomes(tmp_path / "here"), outcomes(tmp_path / "there")
    assert len(here) == TASKS and here == over_http
