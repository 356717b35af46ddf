"""trainer=verl begins with the adapter that the agent has: its files, without verl itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from letters import SETTINGS, job
from models import save_adapter, save_model

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, TrainingJob
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.trainers.adapters import Pair, begin_with, fresh, write_adapter
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.start import start_of
from trace_bench.trainers.verl.job import spec_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def begun(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AgentSpec:
    place = save_adapter(model, tmp_path_factory.mktemp("adapter"))
    return AgentSpec(str(model), "start-x", adapters=(AdapterRef("sft-12@0003", str(place)),))


def test_the_first_iteration_is_the_agents_own_adapter(begun: AgentSpec, tmp_path: Path) -> None:
    settings = VerlSettings(device="cpu", group_size=4, groups=2)
    run = RunContext(model=begun.model, context=256)
    spec = spec_of(TrainingJob("grpo", begun, (), 16, 0), settings, run, (2, 2), 1)
    assert [spec.version(i) for i in range(3)] == ["sft-12@0003", "grpo@0001", "grpo@0002"]
    assert spec.acting(0, tmp_path) == begun
    assert [a.name for a in spec.acting(2, tmp_path).adapters] == ["grpo@0002"]
    assert spec.acting(1, tmp_path).version == "start-x+grpo@0001"


@pytest.mark.parametrize("rank", [4, 8])
def test_what_verl_starts_from_computes_the_same(
    rank: int, model: Path, begun: AgentSpec, tmp_path: Path
) -> None:
    settings = VerlSettings(device="cpu", rank=rank, alpha=24.0)
    (start,) = begun.adapters
    layers = fresh(str(model), LINEAR, rank, seed=3)
    begin_with(layers, start, settings)
    lora = {"rank": rank, "alpha": settings.alpha, "target_modules": LINEAR}
    write_adapter(tmp_path / "start", layers, lora, str(model))
    shapes = {name: (x.b.shape[0], x.a.shape[1]) for name, x in layers.items()}
    weights = read_adapter(AdapterRef("start", str(tmp_path / "start")), shapes).weights
    for name, (a, b) in read_adapter(start, shapes).weights.items():
        torch.testing.assert_close(weights[name][1] @ weights[name][0], b @ a)
        assert weights[name][0].shape[0] == rank and bool(weights[name][0].any(1).all())


def test_what_does_not_fit_is_refused(model: Path, begun: AgentSpec) -> None:
    (start,) = begun.adapters
    layers: dict[str, Pair] = fresh(str(model), LINEAR, 2, seed=3)
    with pytest.raises(UserError, match=r"rank 4, more than trainer\.rank=2"):
        begin_with(layers, start, VerlSettings(rank=2))
    two = AgentSpec("m", "v", adapters=(start, start))
    with pytest.raises(UserError, match="routes between several"):
        start_of(two)
    assert start_of(job(model, 12).agent) is None and SETTINGS.rank == 4
