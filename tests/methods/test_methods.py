"""Methods by name, and the two that need no machinery of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from named import method

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Method, PlansItself, TrainingJob
from trace_bench.core.store import write_json
from trace_bench.core.types import AdapterRef, AgentSpec, Task
from trace_bench.methods.base import Base
from trace_bench.methods.grpo import Grpo, GrpoSettings
from trace_bench.methods.saved import Saved, SavedSettings
from trace_bench.settings.registry import OWN

TASKS = [Task(str(i), "e", "train", i) for i in range(3)]
BASE = AgentSpec("model")


@dataclass
class RecordingTrainer:
    jobs: list[TrainingJob] = field(default_factory=list)

    def train(self, job: TrainingJob, lab: Any) -> AgentSpec:
        self.jobs.append(job)
        return AgentSpec("trained")


def lab() -> Any:
    return SimpleNamespace(seed=4, trainer=RecordingTrainer(), budget_left=lambda: 640)


@pytest.mark.parametrize("name", sorted(OWN["method"]))
def test_every_name_leads_to_a_method_that_plans_itself(name: str, tmp_path: Path) -> None:
    write_json(tmp_path / "agent.json", AgentSpec("m"))
    made = method(name, **({"agent": str(tmp_path)} if name == "saved" else {}))
    assert isinstance(made, Method) and isinstance(made, PlansItself)


def test_base_changes_nothing() -> None:
    bare = SimpleNamespace()  # it does not even ask for the budget
    assert Base().fit(BASE, TASKS, bare) is BASE  # type: ignore[arg-type]


def test_grpo_trains_one_adapter_on_all_tasks_with_the_whole_budget() -> None:
    place = lab()
    assert Grpo(GrpoSettings(reward="success")).fit(BASE, TASKS, place).model == "trained"
    (job,) = place.trainer.jobs
    assert (job.name, job.agent, job.tasks, job.rollouts) == ("grpo", BASE, TASKS, 640)
    assert job.reward == "success"
    other = lab()
    Grpo(GrpoSettings()).fit(BASE, TASKS, other)
    assert other.trainer.jobs[0].reward == "similarity"
    assert other.trainer.jobs[0].seed == job.seed


def test_a_stored_agent_is_found_again_and_another_one_is_another_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "adapters" / "a" / "0001").mkdir(parents=True)
    gone = AdapterRef("a@0001", "/nowhere/adapters/a/0001")
    write_json(folder / "agent.json", AgentSpec("old", "v", "Be brief.", (gone,)))
    settings = SavedSettings(str(folder))
    agent = Saved(settings).fit(BASE, TASKS, lab())
    assert (agent.model, agent.prompt) == ("model", "Be brief.")
    assert agent.adapters[0].path == str(folder / "adapters" / "a" / "0001")
    write_json(folder / "agent.json", AgentSpec("old", "w"))
    assert SavedSettings(str(folder)).sha256 != settings.sha256
    assert SavedSettings(str(folder), settings.sha256).sha256 != settings.sha256


@pytest.mark.parametrize(
    ("given", "words"),
    [("", "needs method.agent"), ("nowhere", "holds no agent"), ("odd", "holds no agent")],
)
def test_an_agent_that_is_not_there_is_refused(tmp_path: Path, given: str, words: str) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "agent.json").write_text("[1]")
    with pytest.raises(UserError, match=words):
        Saved(SavedSettings(given and str(tmp_path / given))).fit(BASE, TASKS, lab())
