"""`policy.dtype`: which numbers, and that sampler and trainer round at the same places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from models import save_adapter, save_model
from playing import play
from toy import ToySuite, toy_task

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies import loading
from trace_bench.policies.engine.decoder import Decoder
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.policies.engine.matrices import LowRank, Merged
from trace_bench.policies.loading import SMALL, CastHead, CastLinear, chosen, load_model
from trace_bench.policies.local import LocalPolicy
from trace_bench.trainers.grpo import group_advantages
from trace_bench.trainers.local import TrainerSettings
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tokens, build, stretches
from trace_bench.trainers.update import Steps, update


def test_auto_is_for_large_models_on_processors_that_have_it(monkeypatch) -> None:
    monkeypatch.setattr(loading, "_quick", lambda device: True)
    assert chosen("auto", SMALL, "cpu") == torch.float32
    assert chosen("auto", SMALL + 1, "cpu") == torch.bfloat16
    assert chosen("float32", SMALL + 1, "cpu") == torch.float32
    assert chosen("bfloat16", 1, "cpu") == torch.bfloat16
    monkeypatch.setattr(loading, "_quick", lambda device: False)
    assert chosen("auto", SMALL + 1, "cpu") == torch.float32
    with pytest.raises(UserError, match=r"policy\.dtype=bfloat16: .*allowed here: auto, float32"):
        chosen("bfloat16", 1, "cpu")


def one_step(learner: Learner, batch: list[Tokens]) -> Steps:
    """A step with a learning rate of 0."""
    settings = TrainerSettings(group_size=3, epochs=1)
    groups = torch.arange(len(batch)) // 3
    found = group_advantages(torch.arange(float(len(batch))), groups)
    optimizer = torch.optim.AdamW(learner.parameters, 0.0)
    return update(learner, optimizer, [[one] for one in batch], found, settings, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_sampler_and_trainer_agree_in_bfloat16(kind, tmp_path, monkeypatch) -> None:
    """The products differ from float32 more than sampler and trainer from each other."""
    monkeypatch.setattr(loading, "_quick", lambda device: True)
    path = save_model(tmp_path / "model", kind, hidden_size=64, initializer_range=0.08)
    adapter = AdapterRef("a@0001", str(save_adapter(path, tmp_path / "adapter")))
    policy = LocalPolicy(path, batch=8, dtype="bfloat16")
    exact = LocalPolicy(path, batch=8)
    for used, kind_of in ((policy, LowRank), (exact, Merged)):
        assert isinstance(used._backend, Decoder)
        assert isinstance(used._backend._matrices, kind_of)
    agent = AgentSpec(str(path), adapters=(adapter,))
    tasks = [toy_task(i // 3, patience=2) for i in range(9)]
    how: dict[str, Any] = {"route": ["a@0001"] * 9, "max_turns": 3, "max_tokens": 24}
    batch = stretches(*play(policy, ToySuite(), agent, tasks, range(9), **how))
    sampled = torch.from_numpy(np.concatenate([b.logprobs for b in batch]))
    apart = {}
    for dtype in ("bfloat16", "float32"):
        linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        learner = Learner(str(path), linear, 4, 8.0, dtype=dtype)  # type: ignore[arg-type]
        shapes = policy._backend.shapes
        with torch.no_grad():
            for name, (a, b) in read_adapter(adapter, shapes).weights.items():
                learner.layers[name].a.copy_(a)
                learner.layers[name].b.copy_(b / learner.layers[name].scale)
        found = learner.logprobs(build(batch))
        apart[dtype] = float((found.detach() - sampled).abs().mean())
        torch.autograd.backward(found.sum())
        assert all(p.dtype == torch.float32 and p.grad is not None for p in learner.parameters)
        rounded = dtype == "bfloat16"
        assert learner.rounded is rounded
        steps = one_step(learner, batch)
        assert steps.mismatch is not None
        gap = float((sampled - found.detach()).mean())  # the policy has not changed yet
        assert steps.kl / steps.weight == pytest.approx(0.0 if rounded else gap, abs=1e-5)
        assert steps.mismatch.mean == pytest.approx(apart[dtype], rel=1e-2)
    assert 0 < apart["bfloat16"] < apart["float32"], apart


def test_only_products_are_rounded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(loading, "_quick", lambda device: True)
    path = save_model(tmp_path, "llama", tie_word_embeddings=False)
    model, _ = load_model(path, dtype="bfloat16")
    kinds = {type(m) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    assert kinds == {CastLinear, CastHead} and isinstance(model.lm_head, CastHead)
    rounded = {n for n, p in model.named_parameters() if p.dtype == torch.bfloat16}
    assert rounded == {n for n, _ in model.named_parameters() if n.endswith("proj.weight")}
    plain, _ = load_model(path)
    ids = torch.arange(40)[None]
    exact, found = plain(ids).logits, model(ids).logits
    assert found.dtype == torch.float32 and not torch.equal(exact, found)
    off = (exact - found).detach().abs().mean()
    assert float(off) < 0.02 * float(exact.detach().abs().mean())
