"""What the games that others made share: splits by openings, and a worker that plays the same."""

from __future__ import annotations

from typing import Any

import pytest
from playing import play
from sandboxes import chosen, in_sandbox

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.types import AgentSpec, to_json
from trace_bench.envs.games import Divided
from trace_bench.policies.scripted import ReferencePolicy
from trace_bench.sandbox.engine import Sandbox


def test_openings_that_are_too_few_are_refused() -> None:
    """By their splits, and by tasks for a capability: this one's checksum is one of `test`."""
    alone = Divided(lambda seed: "only", "env.size=1", "env.size=5")
    for ask in (lambda: alone.training(0), lambda: alone.seed("train", 0)):
        with pytest.raises(UserError, match=r"env.size=1: its openings are too few.*: env.size=5"):
            ask()
    assert alone.seed("test", 0) == 0
    with pytest.raises(UserError, match="too few"):  # there is one, and no second one
        alone.seed("test", 1)


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
