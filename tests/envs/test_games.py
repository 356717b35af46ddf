"""What the games that others made share: a worker that plays the same."""

from __future__ import annotations

from typing import Any

import pytest
from playing import play
from sandboxes import chosen, in_sandbox

from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AgentSpec, to_json
from trace_bench.policies.scripted import ReferencePolicy
from trace_bench.sandbox.engine import Sandbox


@pytest.mark.worlds
@pytest.mark.parametrize(("name", "package"), [("babyai", "minigrid"), ("textarena", "textarena")])
def test_a_worker_plays_the_same(name: str, package: str) -> None:
    pytest.importorskip(package, reason=f"the extra {name} is not installed")
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
