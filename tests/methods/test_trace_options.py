"""The settings of method=trace that are off by default, with a scripted agent in the real world."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models import save_adapter, save_model
from named import QUICK, method
from trace_lab import BASE, MemoryLab, ScriptedTrainer

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import PlannedRun
from trace_bench.core.types import AdapterRef, AgentSpec, Purpose
from trace_bench.methods.trace_finish import TraceFinish, TraceFinishSettings
from trace_bench.policies.engine.lora import read_config, read_weights
from trace_bench.policies.routing.merge import pair_of

HABITS = {"recovers_from_errors": 0.6, "completes_all_parts": 0.5, "disambiguates": 0.7}


def fit(budget: int = 600, **settings: Any) -> tuple[AgentSpec, MemoryLab]:
    lab = MemoryLab(HABITS, budget, 3)
    made = method("trace", **QUICK["trace"], **settings)
    return made.fit(BASE, lab.suite.tasks("train"), lab), lab


@pytest.fixture(scope="module")
def usual() -> tuple[AgentSpec, MemoryLab]:
    return fit()


def spent(lab: MemoryLab) -> Counter[Purpose]:
    counted: Counter[Purpose] = Counter()
    for _, purpose, tasks in lab.calls:
        counted[purpose] += len(tasks)
    return counted


def test_without_calibration_its_rollouts_go_to_training(usual: Any) -> None:
    _, lab = fit(calibration_rounds=0)
    before, after = spent(usual[1]), spent(lab)
    assert before[Purpose.CALIBRATION] > 0 and after[Purpose.CALIBRATION] == 0
    assert after[Purpose.TRAINING] == before[Purpose.TRAINING] + before[Purpose.CALIBRATION]
    assert [j.name for j in lab.trainer.jobs] == [j.name for j in usual[1].trainer.jobs]
    found = lab.files["capabilities.json"]["calibration"]
    assert {c["outcome"] for c in found} == {"not measured"}
    assert not any("warning" in text for text in lab.logged)
    run = PlannedRun(600, 64, ScriptedTrainer())
    phases = method("trace", calibration_rounds=0).plan(run).phases
    assert [(p.name, p.rollouts) for p in phases] == [("analysis", 64), ("training", 536)]


def test_a_models_environments_need_calibration() -> None:
    run = PlannedRun(600, 64, ScriptedTrainer(), models=frozenset({"analyst", "generator"}))
    with pytest.raises(UserError, match=r"method\.calibration_rounds="):
        method("trace", calibration_rounds=0).plan(run)


def test_a_joint_adapter_is_finished_whole_and_several_by_their_weight(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = save_adapter(save_model(tmp_path / "model"), tmp_path / "adapters" / "a" / "0001")
    ref = AdapterRef("a@0001", str(path))
    place = min(read_weights(ref)).rpartition(".lora_")[0]

    def update(adapter: AdapterRef) -> Any:
        pair = pair_of(read_weights(adapter), place, read_config(adapter))
        assert isinstance(pair, tuple)
        return pair[1] @ pair[0]

    for settings, share in (
        (TraceFinishSettings(adapters="joint"), 1.0),
        (TraceFinishSettings(), TraceFinishSettings().route.weight),
    ):
        start = TraceFinish(settings).start(BASE, replace(BASE, adapters=(ref,)))
        assert torch.allclose(update(start.adapters[0]), share * update(ref), atol=1e-6)


@pytest.mark.parametrize("name", ["rft", "ace", "prompt_only"])
def test_without_a_training_task_a_method_ends_in_words(name: str) -> None:
    with pytest.raises(UserError, match=r"no training task\. Change `env\.train_split`"):
        method(name).fit(BASE, [], MemoryLab(HABITS, 320, 3))
