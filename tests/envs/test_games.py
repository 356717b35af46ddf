"""What the games that others made share: the contract, and a worker that plays the same."""

from __future__ import annotations

from typing import Any

import pytest
from playing import play
from sandboxes import chosen, in_sandbox
from shared import needs

from trace_bench.check import main as check_command
from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AgentSpec, to_json
from trace_bench.policies.scripted import ReferencePolicy
from trace_bench.sandbox.engine import Sandbox

pytestmark = pytest.mark.worlds
GAMES = [
    pytest.param(name, marks=needs(package, f"the extra {name} is not installed"))
    for name, package in (("babyai", "minigrid"), ("textarena", "textarena"))
]


@pytest.mark.parametrize("name", GAMES)
def test_the_check_passes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command([f"env={name}", "limit=2"]) == 0
    printed = capsys.readouterr().out
    assert "ok         2  its solution solves it from anywhere" in printed
    assert "ok         6  the splits share no task" in printed


@pytest.mark.parametrize("name", GAMES)
def test_a_worker_plays_the_same(name: str) -> None:
    suite: Any = chosen(name).make(RunContext())
    tasks = suite.tasks("dev")[:8]

    def played(there: Any) -> object:
        policy = ReferencePolicy(suite)
        return to_json(play(policy, there, AgentSpec("x"), tasks, range(8), max_turns=40))

    worker = in_sandbox(chosen(name), Sandbox("process", run=f"test-{name}"))
    try:
        assert to_json(worker.tasks("dev")) == to_json(suite.tasks("dev"))
        assert played(worker) == played(suite)
    finally:
        worker.close()
