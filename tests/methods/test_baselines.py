"""The other methods, and TRACE's settings that are off by default, with a scripted agent."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from named import QUICK, method
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.chat import with_guidance
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun, TrainingJob
from trace_bench.core.types import AdapterRef, AgentSpec, Purpose
from trace_bench.methods.grpo import Base, Grpo, Rl, RlSettings
from trace_bench.methods.looking.capabilities import VOCABULARY
from trace_bench.methods.trace.experts import summed
from trace_bench.methods.trace.settings import TraceSettings
from trace_bench.policies.engine.lora import read_config, read_weights
from trace_bench.policies.routing.merge import pair_of
from trace_bench.policies.routing.router import Linear
from trace_bench.tiny.demos import GUIDANCE

HABITS = {"recovers_from_errors": 0.7, "asks_when_information_is_missing": 0.7}
THREE = {"recovers_from_errors": 0.6, "completes_all_parts": 0.5, "disambiguates": 0.7}


def fit(name: str, budget: int, habits: dict = HABITS, **settings: Any) -> tuple[AgentSpec, Any]:
    lab = MemoryLab(habits, budget, seed=7)
    return method(name, **settings).fit(BASE, lab.suite.tasks("train"), lab), lab


def test_single_capability_gives_the_whole_budget_to_the_first_one() -> None:
    agent, lab = fit("single_capability", 1280)
    selected = [c["name"] for c in lab.files["capabilities.json"]["candidates"] if c["selected"]]
    assert len(selected) == 2 and [a.capability for a in agent.adapters] == selected[:1]
    assert lab.left == 0 and agent.router is not None
    why = "not trained: budget and method.max_capabilities allow 1"
    assert any(why in text for text in lab.logged)
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


def test_base_changes_nothing() -> None:
    assert Base().fit(BASE, [], SimpleNamespace()) is BASE  # type: ignore[arg-type]


def test_grpo_trains_one_adapter_on_all_tasks_with_the_whole_budget() -> None:
    jobs: list[TrainingJob] = []
    for made in (Grpo(RlSettings(reward="success")), Grpo(RlSettings()), Rl(RlSettings())):
        lab = MemoryLab(HABITS, 640, 4)
        made.fit(BASE, lab.suite.tasks("train"), lab)  # type: ignore[arg-type]
        jobs += lab.trainer.jobs
    one, other, plain = jobs
    assert (one.name, one.agent, one.rollouts) == ("grpo", BASE, 640) and len(one.tasks) == 64
    assert (one.reward, other.reward) == ("success", "similarity")
    assert one.seed == other.seed and replace(other, name="rl", seed=plain.seed) == plain


@pytest.mark.parametrize(
    ("synthesis", "reward"), [("generate", "similarity"), ("select", "success")]
)
def test_the_targets_reward_is_that_of_its_own_tasks_alone(synthesis: str, reward: str) -> None:
    _, lab = fit("trace", 640, **QUICK["trace"], reward="success", synthesis=synthesis)
    assert lab.trainer.jobs and {job.reward for job in lab.trainer.jobs} == {reward}


def test_the_target_finishes_from_the_base_agent_where_nothing_was_trained() -> None:
    agent, lab = fit("joint", 640, {}, finish=0.25, reward="success")
    (job,) = lab.trainer.jobs
    assert (job.name, job.agent, job.reward) == ("finish", BASE, "success")
    assert job.rollouts == 640 - lab.spent()[Purpose.ANALYSIS] and lab.left == 0
    assert agent.router is None and [a.name for a in agent.adapters] == ["finish-v1"]
    why = r"method\.route=classifier chooses .* method\.route=linear"
    with pytest.raises(UserError, match=why):
        method("trace", finish=0.25)


def test_without_calibration_its_rollouts_go_to_training() -> None:
    _, usual = fit("trace", 600, THREE, **QUICK["trace"])
    _, lab = fit("trace", 600, THREE, **QUICK["trace"], calibration_rounds=0)
    before, after = usual.spent(), lab.spent()
    assert before[Purpose.CALIBRATION] > 0 and after[Purpose.CALIBRATION] == 0
    assert after[Purpose.TRAINING] == before[Purpose.TRAINING] + before[Purpose.CALIBRATION]
    assert [j.name for j in lab.trainer.jobs] == [j.name for j in usual.trainer.jobs]
    rows = lab.files["capabilities.json"]["calibration"]
    assert {row["outcome"] for row in rows} == {"not measured"}
    run = PlannedRun(600, 64, ScriptedTrainer())
    phases = method("trace", calibration_rounds=0).plan(run).phases
    assert [(p.name, p.rollouts) for p in phases] == [("analysis", 64), ("training", 536)]


def test_a_models_environments_need_calibration() -> None:
    run = PlannedRun(600, 64, ScriptedTrainer(), models=frozenset({"analyst", "generator"}))
    with pytest.raises(UserError, match=r"method\.calibration_rounds="):
        method("trace", calibration_rounds=0).plan(run)


def test_a_finish_begins_with_the_weighted_adapters(small_adapter: Path, tmp_path: Path) -> None:
    import torch

    place = tmp_path / "adapters" / "a" / "0001"
    shutil.copytree(small_adapter, place)
    ref = AdapterRef("a@0001", str(place))
    layer = min(read_weights(ref)).rpartition(".lora_")[0]

    def update(adapter: AdapterRef) -> Any:
        pair = pair_of(read_weights(adapter), layer, read_config(adapter))
        assert isinstance(pair, tuple)
        return pair[1] @ pair[0]

    several = TraceSettings(finish=0.25, route=Linear(weight=0.3))
    for settings, share in ((TraceSettings(finish=0.25, adapters="joint"), 1.0), (several, 0.3)):
        start = summed(BASE, replace(BASE, adapters=(ref,)), settings.weight)
        assert torch.allclose(update(start.adapters[0]), share * update(ref), atol=1e-6)


@pytest.mark.parametrize("name", ["rft", "ace", "prompt_only"])
def test_without_a_training_task_a_method_ends_in_words(name: str) -> None:
    with pytest.raises(UserError, match=r"no training task\. Change `env\.train_split`"):
        method(name).fit(BASE, [], MemoryLab(HABITS, 320, 3))
