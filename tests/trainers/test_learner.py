"""The tree of a batch gives what every trajectory gives alone, with gradients as plain PEFT's; its
memory is bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from models import save_model
from torch import Tensor, nn
from torch.nn import functional

from trace_bench.trainers import tree
from trace_bench.trainers.adapters import LoraLinear, restart, write_adapter
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import MemoryBudget, Tokens, build, parts

TARGETS = ["q_proj", "v_proj", "o_proj", "down_proj"]


def sequence(ids: list[int], sampled: list[int]) -> Tokens:
    return Tokens(np.array(ids), np.array(sampled), np.zeros(len(sampled), np.float32))


def tokens(length: int, seed: int, shared: int = 5) -> Tokens:
    """`shared` tokens as all have them, then some of its own, every third one sampled."""
    rest = np.random.default_rng(seed).integers(0, 200, length - shared).tolist()
    return sequence([*range(shared), *rest], list(range(shared, length, 3)))


def random_batch(seed: int) -> list[Tokens]:
    """Groups that share a prompt and sometimes more, of very different lengths."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(3):
        prompt = [7, 8, 9, *rng.integers(0, 200, rng.integers(3, 40)).tolist()]
        for _ in range(4):
            n = int(rng.integers(1, 6)) * int(rng.integers(1, 12))
            rest = rng.integers(0, 3, n).tolist()  # few symbols: long common beginnings
            places = sorted(rng.choice(n, max(1, n // 2), replace=False).tolist())
            out.append(sequence(prompt + rest[: places[-1] + 1], [len(prompt) + p for p in places]))
    return [*out, out[0]]  # an exact repetition


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model_path(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return save_model(folder, request.param, max_position_embeddings=8192)


@pytest.fixture(scope="module")
def learner(model_path: Path) -> Learner:
    learner = Learner(str(model_path), TARGETS, 4, 8.0)
    restart(learner.layers, 1)
    with torch.no_grad():
        for layer in learner.layers.values():
            layer.b.normal_(0, 0.2, generator=torch.Generator().manual_seed(2))
    return learner


@pytest.mark.parametrize("seed", range(3))
def test_a_node_is_computed_once(seed: int) -> None:
    batch = random_batch(seed)
    whole = build(batch)
    beginnings = {tuple(b.ids[: i + 1].tolist()) for b in batch for i in range(len(b.ids) - 1)}
    assert len(whole.ids) == len(beginnings)
    sampled = [int(t) for b in batch for t in b.ids[b.sampled]]
    assert whole.token[whole.choice].tolist() == sampled


def test_logprobs_and_gradients_are_those_of_peft(model_path, learner, tmp_path) -> None:
    """One forward pass a trajectory there, with the model's own attention."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    batch = random_batch(5)
    weights = torch.randn(sum(len(b.sampled) for b in batch), generator=torch.manual_seed(3))
    settings = {"rank": 4, "alpha": 8.0, "target_modules": TARGETS}
    write_adapter(tmp_path / "adapter", learner.layers, settings, str(model_path))
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    expected = []
    for b in batch:
        logits = peft(torch.from_numpy(b.ids)[None]).logits[0].log_softmax(-1)
        expected.append(logits[b.sampled - 1, torch.from_numpy(b.ids[b.sampled])])
    (torch.cat(expected) * weights).sum().backward()
    ours = learner.logprobs(build(batch))
    torch.testing.assert_close(ours, torch.cat(expected), atol=2e-5, rtol=1e-5)
    for p in learner.parameters:
        p.grad = None
    (ours * weights).sum().backward()
    theirs = dict(peft.named_parameters())
    for name, layer in learner.layers.items():
        for mine, letter in ((layer.a, "A"), (layer.b, "B")):
            other = theirs[f"base_model.model.{name}.lora_{letter}.default.weight"]
            torch.testing.assert_close(mine.grad, other.grad, atol=2e-4, rtol=1e-3)
    trained = {n for n, p in learner.model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * len(learner.layers)


# -- memory ---------------------------------------------------------------------------------------


def gradients(learner: Learner, batches: list[list[Tokens]]) -> list[Tensor]:
    """Of the sum over all batches; the log-probabilities come first."""
    for p in learner.parameters:
        p.grad = None
    out = []
    for batch in batches:
        logprobs = learner.logprobs(build(batch))
        torch.autograd.backward((logprobs * torch.arange(1, len(logprobs) + 1)).mean())
        out.append(logprobs.detach())
    return [*out, *(p.grad for p in learner.parameters if p.grad is not None)]


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-4, rtol=1e-3)


def test_without_a_mask_and_with_layers_computed_again_it_is_the_same(learner, monkeypatch) -> None:
    batch = [tokens(n, i, 30) for i, n in enumerate((60, 64, 90, 33, 60))]
    masked = gradients(learner, [batch])
    before = [m.training for m in learner.model.modules()]
    with monkeypatch.context() as patch:
        patch.setitem(vars(learner), "memory_budget", MemoryBudget(0.0, 1.0, 1.0))
        same(gradients(learner, [batch]), masked)
    assert [m.training for m in learner.model.modules()] == before
    for longest in (0, 62):  # all without a mask, or some
        monkeypatch.setattr(tree, "_MASKED", longest)
        assert any(r.allowed is None for r in build(batch).rows)
        same(gradients(learner, [batch]), masked)


def test_a_pass_keeps_no_square_of_its_tokens(learner) -> None:
    """The budget is the same if it is first asked for without gradients, as in bfloat16."""
    assert 1.9 < learner._kept(3000) / learner._kept(1500) < 2.1
    vars(learner).pop("memory_budget", None)
    with torch.no_grad():
        without = learner.memory_budget
    del learner.memory_budget
    assert without == learner.memory_budget
    assert without.node == pytest.approx(learner._kept(64) / 64, rel=0.3)


def test_batches_are_divided_to_fit(learner) -> None:
    batch = [tokens(n, i, 20) for i, n in enumerate((40, 44, 30, 90, 25, 26))]
    pieces = list(parts(batch, 10_000, MemoryBudget(100.0, 1.0, 0.0)))  # a hundred distinct tokens
    assert [t for part in pieces for t in part] == batch
    assert [len(part) for part in pieces] == [3, 2, 1]  # shared beginnings count once
    assert [len(p) for p in parts(batch, 80, MemoryBudget(1e9, 1.0, 1.0))] == [1, 2, 1, 2]
    assert [len(p) for p in parts(batch, 10_000, MemoryBudget(1.0, 1.0, 1.0))] == [1] * 6
    whole, divided = gradients(learner, [batch])[0], gradients(learner, [[t] for t in batch])[:6]
    torch.testing.assert_close(torch.cat(divided), whole, atol=2e-4, rtol=1e-3)


# -- one layer ------------------------------------------------------------------------------------


def layer_of(dtype: torch.dtype, bias: bool) -> LoraLinear:
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(24, 40, bias=bias).to(dtype), 4, 2.0)
    layer.requires_grad_(False)
    restart({"layer": layer}, 1)
    layer.b.normal_()
    return layer


def plain(layer: LoraLinear, x: Tensor) -> Tensor:
    base, kind = layer.base, layer.base.weight.dtype
    low = x.to(kind)
    thin = functional.linear(low, (layer.a * layer.scale).to(kind))
    update = functional.linear(thin, layer.b.to(kind))
    return functional.linear(low, base.weight, base.bias).to(x.dtype) + update.to(x.dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_a_layers_gradient_is_that_of_autograd(dtype: torch.dtype, off: float, bias: bool) -> None:
    layer = layer_of(dtype, bias)
    layer.a.requires_grad_(True)
    layer.b.requires_grad_(True)
    layer.scale = 2.0
    sides = []
    for forward in (layer, lambda x: plain(layer, x)):
        x = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(2)).requires_grad_(True)
        out = forward(x)
        loss = (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()
        sides.append((out, *torch.autograd.grad(loss, (x, layer.a, layer.b))))
    for ours, expected in zip(*sides, strict=True):
        assert ours.shape == expected.shape and ours.dtype == expected.dtype
        assert (ours - expected).abs().max() <= off * expected.abs().max()
