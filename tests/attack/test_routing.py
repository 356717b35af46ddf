"""Generated environments that were accepted and fail later: the router has fewer examples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from trace_bench.core.protocols import Source
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.methods.trace.experts import TrainingEvidence
from trace_bench.policies.routing import Expert
from trace_bench.policies.routing.classifier import Classifier
from trace_bench.sandbox.choose import generated_suite
from trace_bench.sandbox.engine import Sandbox

TIER = "model"  # its router is fitted by torch

SOURCE = """
import os, time
from trace_bench.core.types import Step

def make_task(seed):
    return {"seed": seed}

def reference(data):
    return []

class Env:
    def reset(self, task):
        seed = task.data["seed"]
        if seed == 1:
            raise ValueError("no more")
        if seed == 2:
            os._exit(0)
        if seed == 3:
            time.sleep(60)
        content = "x" * 2**21 if seed == 4 else f"request {seed}"
        return Step(({"role": "user", "content": content},))
    def step(self, action):
        return Step(done=True)
    def close(self):
        pass
"""


def test_a_module_that_fails_later_costs_only_its_examples() -> None:
    sandbox = Sandbox("process", 1, 1.0, 30.0, 0, allow_untrusted=True, run="attack")
    suite = cast(Any, generated_suite(Source("late-1", SOURCE, {}), sandbox, lambda _: None))
    logged: list[str] = []
    read: list[str] = []

    def states(prompts: Any) -> list[list[float]]:
        read.extend(messages[-1]["content"] for messages, _ in prompts)
        return [[1.0]] * len(prompts)

    lab: Any = SimpleNamespace(suite_of=lambda task: suite, log=logged.append, prompt_states=states)
    tasks = [suite.synthetic("", seed) for seed in range(6)]
    expert = Expert("late", "", tuple(tasks), AdapterRef("late@1", "path", "late"))
    router = Classifier().router([expert], TrainingEvidence(lab, AgentSpec("m")))
    suite.close()
    assert read == ["request 0", "request 5"] and router["labels"] == ["late@1"]
    places = [f"generated/late-1/{n}" for n in range(1, 5)]
    assert [place for place, line in zip(places, logged, strict=False) if place in line] == places
    assert "no more" in logged[0] and "no answer within" in logged[2]
