"""The table of methods, and the two that need no machinery of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import TrainingJob
from trace_bench.core.types import AgentSpec, Task
from trace_bench.methods import METHODS, method

TASKS = [Task(str(i), "e", "train", i) for i in range(3)]
BASE = AgentSpec("model")


@dataclass
class RecordingTrainer:
    jobs: list[TrainingJob] = field(default_factory=list)

    def train(self, job: TrainingJob, lab: Any) -> AgentSpec:
        self.jobs.append(job)
        return AgentSpec("trained")


def lab(**settings: Any) -> Any:
    trainer = RecordingTrainer()
    return SimpleNamespace(seed=4, settings=settings, trainer=trainer, budget_left=lambda: 640)


def test_every_name_leads_to_a_method_of_that_name() -> None:
    assert set(METHODS) >= {"base", "grpo", "trace"}
    assert {name: method(name).name for name in METHODS} == {name: name for name in METHODS}


def test_an_unknown_name() -> None:
    with pytest.raises(
        UserError, match=r"unknown method 'gpro'; allowed: base, grpo, gepa, saved, sft, trace"
    ):
        method("gpro")


def test_base_changes_nothing() -> None:
    bare = SimpleNamespace()  # it does not even ask for the budget
    assert method("base").fit(BASE, TASKS, bare) is BASE  # type: ignore[arg-type]


def test_grpo_trains_one_adapter_on_all_tasks_with_the_whole_budget() -> None:
    place = lab(reward="success")
    assert method("grpo").fit(BASE, TASKS, place).model == "trained"
    (job,) = place.trainer.jobs
    assert (job.name, job.agent, job.tasks, job.rollouts) == ("grpo", BASE, TASKS, 640)
    assert job.reward == "success"
    other = lab()
    method("grpo").fit(BASE, TASKS, other)
    assert other.trainer.jobs[0].reward == "similarity"
    assert other.trainer.jobs[0].seed == job.seed
