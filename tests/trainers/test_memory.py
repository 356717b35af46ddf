"""What a pass keeps grows with its tokens, and batches are divided to fit what there is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import save_model

from trace_bench.trainers import tree
from trace_bench.trainers.adapters import restart
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import MemoryBudget, Tokens, build, parts


def tokens(length: int, seed: int, shared: int = 5) -> Tokens:
    """`shared` tokens as all have them, then some of its own, every third one sampled."""
    own = np.random.default_rng(seed).integers(0, 200, length - shared)
    ids = np.concatenate([np.arange(shared), own])
    sampled = np.arange(shared, length, 3)
    return Tokens(ids, sampled, np.zeros(len(sampled), np.float32))


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def learner(request, tmp_path_factory) -> Learner:
    path = tmp_path_factory.mktemp("model")
    save_model(path, request.param, max_position_embeddings=8192)
    made = Learner(str(path), ["q_proj", "v_proj", "down_proj"], 4, 8.0)
    restart(made.layers, 1)
    with torch.no_grad():
        for layer in made.layers.values():
            layer.b.normal_(0, 0.2, generator=torch.Generator().manual_seed(2))
    return made


def gradients(learner: Learner, batches: list[list[Tokens]]) -> list[torch.Tensor]:
    """Of the sum over all batches; the log-probabilities come first."""
    for p in learner.parameters:
        p.grad = None
    found = []
    for batch in batches:
        logprobs = learner.logprobs(build(batch))
        torch.autograd.backward((logprobs * torch.arange(1, len(logprobs) + 1)).mean())
        found.append(logprobs.detach())
    return [*found, *(p.grad for p in learner.parameters if p.grad is not None)]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-4, rtol=1e-3)


def test_paths_without_a_mask_give_the_same(learner, monkeypatch) -> None:
    batch = [tokens(n, i, 30) for i, n in enumerate((60, 64, 90, 33, 60))]
    masked = gradients(learner, [batch])
    for longest in (0, 62):  # all without a mask, or some
        monkeypatch.setattr(tree, "_MASKED", longest)
        assert any(r.allowed is None for r in build(batch).rows)
        same(gradients(learner, [batch]), masked)


def test_layers_computed_again_give_the_same(learner, monkeypatch) -> None:
    batch = [tokens(n, i) for i, n in enumerate((60, 40))]
    kept = gradients(learner, [batch])
    before = [m.training for m in learner.model.modules()]
    monkeypatch.setitem(vars(learner), "memory_budget", MemoryBudget(0.0, 1.0, 1.0))
    same(gradients(learner, [batch]), kept)
    assert [m.training for m in learner.model.modules()] == before


def test_a_pass_keeps_no_square_of_its_tokens(learner) -> None:
    short, long = learner._kept(1500), learner._kept(3000)
    assert 1.9 < long / short < 2.1
    few = learner._kept(64) / 64
    assert learner.memory_budget.node == pytest.approx(few, rel=0.3)


def test_the_memory_budget_is_the_same_if_first_asked_for_without_gradients(learner) -> None:
    """As in bfloat16, where the trainer's own log-probabilities are read before the first step."""
    vars(learner).pop("memory_budget", None)
    with torch.no_grad():
        without = learner.memory_budget
    del learner.memory_budget
    assert without == learner.memory_budget and without.node > 0


def test_batches_are_divided_to_fit(learner) -> None:
    batch = [tokens(n, i, 20) for i, n in enumerate((40, 44, 30, 90, 25, 26))]
    memory = MemoryBudget(100.0, 1.0, 0.0)  # a hundred distinct tokens
    found = list(parts(batch, 10_000, memory))
    assert [t for part in found for t in part] == batch
    assert [len(part) for part in found] == [3, 2, 1]  # shared beginnings count once
    assert [len(p) for p in parts(batch, 10_000, MemoryBudget(50.0, 1.0, 0.0))] == [1, 1, 1, 1, 2]
    assert [len(p) for p in parts(batch, 80, MemoryBudget(1e9, 1.0, 1.0))] == [1, 2, 1, 2]
    assert [len(p) for p in parts(batch, 10_000, MemoryBudget(1.0, 1.0, 1.0))] == [1] * 6
    whole, divided = gradients(learner, [batch])[0], gradients(learner, [[t] for t in batch])[:6]
    torch.testing.assert_close(torch.cat(divided), whole, atol=2e-4, rtol=1e-3)
