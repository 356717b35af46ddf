"""A mixture of experts with untied embeddings, trained in this process. Behind vLLM:
tests/policies/test_vllm_mixture.py; by verl: tests/trainers/test_verl_algorithms.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from letters import SETTINGS, job, make_lab
from models import save_mixture

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.store import read_lines
from trace_bench.policies.engine.lora import read_weights
from trace_bench.policies.loading import load_model
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.local import LocalTrainer
from trace_bench.trainers.memory import shape_of
from trace_bench.trainers.settings import TrainerSettings

ATTENTION = LINEAR[:4]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mixture(tmp_path_factory.mktemp("mixture"))


def test_attention_has_an_adapter_and_the_sampler_agrees(model: Path, tmp_path: Path) -> None:
    """Two iterations: the second one's rollouts are made with the adapter of the first."""
    loaded, _ = load_model(model)
    head, embedding = loaded.lm_head.weight, loaded.model.embed_tokens.weight
    assert head is not embedding and not torch.equal(head, embedding)
    settings = replace(SETTINGS, target_modules=ATTENTION, learning_rate=0.01)
    lab = make_lab(tmp_path, model, 24, settings, max_tokens=24)
    agent = lab.trainer.train(job(model, 24), lab)
    lab.close()
    lines = [r for r in read_lines(tmp_path / "metrics.jsonl") if r["phase"] == "training"]
    assert [m["steps"] for m in lines] == [4, 4] and lines[0]["grad_norm"] > 0
    assert all(0 < m["logprob_difference_mean"] < 5e-6 for m in lines)
    assert all(m["logprob_difference_max"] < 5e-5 for m in lines)
    weights = read_weights(agent.adapters[0])
    assert {name.split(".")[-3] for name in weights} == set(ATTENTION)
    assert all(bool(value.any()) for value in weights.values())


def test_its_size_is_read_from_its_folder(model: Path) -> None:
    shape = shape_of(str(model))
    assert shape is not None and (shape.experts, shape.active) == (4, 2)
    loaded, _ = load_model(model)
    held = sum(p.numel() for p in loaded.parameters())
    assert shape.parameters == pytest.approx(held, rel=0.001)
    assert shape.lora(4, LINEAR) == shape.lora(4, ATTENTION) > 0


def test_experts_as_targets_are_refused_with_the_reason(model: Path, tmp_path: Path) -> None:
    lab = make_lab(tmp_path, model, 24)
    with pytest.raises(UserError, match=r"experts .* one parameter.*`trainer.target_modules`"):
        lab.trainer.train(job(model, 24), lab)
    lab.close()


def test_they_are_refused_before_the_run(model: Path) -> None:
    trainer = LocalTrainer(TrainerSettings(), RunContext(model=str(model)))
    with pytest.raises(UserError, match=r"experts .* one parameter.*`trainer.target_modules`"):
        trainer.preflight(new=True)
    _, missing = trainer.machines(None)
    assert missing == [
        "trainer.target_modules has gate_proj, up_proj, down_proj, and the experts of this model "
        "are one parameter that has no adapter: set "
        "trainer.target_modules=[q_proj,k_proj,v_proj,o_proj]"
    ]
    fits = LocalTrainer(TrainerSettings(target_modules=ATTENTION), RunContext(model=str(model)))
    fits.preflight(new=True)
    assert fits.machines(None)[1] == []
