"""The baselines that are made of TRACE's parts, with a scripted agent in the real world."""

from __future__ import annotations

from collections import Counter
from typing import Any

from named import method
from trace_lab import BASE, MemoryLab

from trace_bench.core.types import AgentSpec, Purpose
from trace_bench.methods.looking.capabilities import VOCABULARY
from trace_bench.play.steps import with_guidance
from trace_bench.tiny.demos import GUIDANCE

HABITS = {"recovers_from_errors": 0.7, "asks_when_information_is_missing": 0.7}


def fit(
    name: str, budget: int, habits: dict | None = None, **settings: Any
) -> tuple[AgentSpec, Any]:
    lab = MemoryLab(HABITS if habits is None else habits, budget, seed=7)
    return method(name, **settings).fit(BASE, lab.suite.tasks("train"), lab), lab


def test_single_capability_gives_the_whole_budget_to_the_first_one() -> None:
    agent, lab = fit("single_capability", 1280)
    selected = [c["name"] for c in lab.files["capabilities.json"]["candidates"] if c["selected"]]
    assert len(selected) == 2 and [a.capability for a in agent.adapters] == selected[:1]
    assert lab.left == 0 and agent.router is not None
    assert any(
        "not trained: budget and method.max_capabilities allow 1" in text for text in lab.logged
    )
    (job,) = lab.trainer.jobs
    assert job.rollouts == 1280 - sum(len(t) for _, p, t in lab.calls if p is not Purpose.TRAINING)


def test_prompt_only_advises_about_what_is_lacking_and_trains_nothing() -> None:
    agent, lab = fit("prompt_only", 320)
    assert {purpose for _, purpose, _ in lab.calls} == {Purpose.ANALYSIS} and lab.left == 0
    advice = {c.name: c.advice for c in VOCABULARY}
    assert set(agent.prompt.splitlines()) == {advice[name] for name in HABITS}
    assert agent.adapters == () and agent.version == "prompt-2"
    first = with_guidance([{"role": "system", "content": "Help."}], agent.prompt)
    assert first[0]["content"] == f"Help.\nGuidance: {agent.prompt}"
    one, _ = fit("prompt_only", 320, max_capabilities=1)
    assert one.prompt == agent.prompt.splitlines()[0]


def test_prompt_only_leaves_a_perfect_agent_alone() -> None:
    agent, lab = fit("prompt_only", 64, {})
    assert agent is BASE and lab.files["capabilities.json"]["outcome"]["prompt"] == []


def test_the_tiny_agent_was_trained_to_understand_the_advice() -> None:
    for capability in VOCABULARY:
        if capability.name in GUIDANCE:
            assert capability.advice in GUIDANCE[capability.name]
        assert bool(capability.advice) is not capability.control


def test_untargeted_trains_one_adapter_on_all_environments_alike() -> None:
    agent, lab = fit("untargeted", 640, synthetic_tasks=10)
    (job,) = lab.trainer.jobs
    assert job.rollouts == 640 and [a.name for a in agent.adapters] == ["untargeted-v1"]
    of = Counter(task.id.split("/")[3] for task in job.tasks)
    assert of == dict.fromkeys(lab.suite.capabilities(), 10)
    assert {purpose for _, purpose, _ in lab.calls} == {Purpose.TRAINING}
