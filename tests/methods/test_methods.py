"""Methods by name, and the two that need no machinery of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from named import method

from trace_bench.core.protocols import Method, Trainer, TrainingJob
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods.grpo import Base, Grpo, Rl, RlSettings
from trace_bench.settings.registry import OWN

TASKS = [Task(str(i), "e", "train", i) for i in range(3)]
BASE = AgentSpec("model")


@dataclass
class RecordingTrainer(Trainer):
    jobs: list[TrainingJob] = field(default_factory=list)

    def train(self, job: TrainingJob, lab: Any) -> AgentSpec:
        self.jobs.append(job)
        return AgentSpec("trained")


def lab() -> Any:
    return SimpleNamespace(seed=4, trainer=RecordingTrainer(), budget_left=lambda: 640)


@pytest.mark.parametrize("name", sorted(OWN["method"]))
def test_every_name_leads_to_a_method_that_plans_itself(name: str) -> None:
    made = method(name)
    assert isinstance(made, Method)


def test_base_changes_nothing() -> None:
    bare = SimpleNamespace()  # it does not even ask for the budget
    assert Base().fit(BASE, TASKS, bare) is BASE  # type: ignore[arg-type]


def test_grpo_trains_one_adapter_on_all_tasks_with_the_whole_budget() -> None:
    place = lab()
    assert Grpo(RlSettings(reward="success")).fit(BASE, TASKS, place).model == "trained"
    (job,) = place.trainer.jobs
    assert (job.name, job.agent, job.tasks, job.rollouts) == ("grpo", BASE, TASKS, 640)
    assert job.reward == "success"
    other = lab()
    Grpo(RlSettings()).fit(BASE, TASKS, other)
    assert other.trainer.jobs[0].reward == "similarity"
    assert other.trainer.jobs[0].seed == job.seed
    third = lab()
    Rl(RlSettings(reward="success")).fit(BASE, TASKS, third)
    assert third.trainer.jobs[0] == replace(job, name="rl", seed=third.trainer.jobs[0].seed)
