"""The tree of a batch gives what every trajectory gives alone, and gradients as plain PEFT does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from models import save_model

from trace_bench.core.types import StopReason, Trajectory, Turn
from trace_bench.trainers.adapters import restart
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tokens, build, stretches


def tokens(ids: list[int], sampled: list[int]) -> Tokens:
    return Tokens(np.array(ids), np.array(sampled), np.zeros(len(sampled), np.float32))


def random_batch(seed: int, groups: int = 3, size: int = 4) -> list[Tokens]:
    """Groups that share a prompt and sometimes more, of very different lengths."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(groups):
        prompt = [7, 8, 9, *rng.integers(0, 200, rng.integers(3, 40)).tolist()]
        for _ in range(size):
            n = int(rng.integers(1, 6)) * int(rng.integers(1, 12))
            rest = rng.integers(0, 3, n).tolist()  # few symbols: long common beginnings
            places = sorted(rng.choice(n, max(1, n // 2), replace=False).tolist())
            end = places[-1] + 1
            sampled = [len(prompt) + p for p in places]
            out.append(tokens(prompt + rest[:end], sampled))
    return [*out, out[0]]  # an exact repetition


def plain_logprobs(model, batch: list[Tokens]) -> torch.Tensor:
    """One forward pass a trajectory, with the model's own attention."""
    out = []
    for b in batch:
        logits = model(torch.from_numpy(b.ids)[None]).logits[0].log_softmax(-1)
        out.append(logits[b.sampled - 1, torch.from_numpy(b.ids[b.sampled])])
    return torch.cat(out)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model_path(request, tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def learner(model_path: Path) -> Learner:
    learner = Learner(str(model_path), ["q_proj", "v_proj", "o_proj", "down_proj"], 4, 8.0)
    restart(learner.layers, 1)
    with torch.no_grad():
        for layer in learner.layers.values():
            layer.b.normal_(0, 0.2, generator=torch.Generator().manual_seed(2))
    return learner


def peft_model(model_path: Path, learner: Learner, folder: Path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from trace_bench.trainers.adapters import write_adapter

    kinds = sorted({n.rpartition(".")[2] for n in learner.layers})
    settings = {"rank": 4, "alpha": 8.0, "target_modules": kinds}
    write_adapter(folder, learner.layers, settings, str(model_path))
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    return PeftModel.from_pretrained(base, folder, is_trainable=True)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_is_computed_once(seed: int) -> None:
    batch = random_batch(seed)
    tree = build(batch)
    beginnings = {tuple(b.ids[: i + 1].tolist()) for b in batch for i in range(len(b.ids) - 1)}
    assert len(tree.ids) == len(beginnings)
    chosen = [int(t) for b in batch for t in b.ids[b.sampled]]
    assert tree.token[tree.choice].tolist() == chosen


def test_logprobs_and_gradients_are_those_of_peft(model_path, learner, tmp_path) -> None:
    batch = random_batch(5)
    weights = torch.randn(sum(len(b.sampled) for b in batch), generator=torch.manual_seed(3))
    reference = peft_model(model_path, learner, tmp_path / "adapter")
    expected = plain_logprobs(reference, batch)
    (expected * weights).sum().backward()
    found = learner.logprobs(build(batch))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)
    for p in learner.parameters:
        p.grad = None
    (found * weights).sum().backward()
    theirs = dict(reference.named_parameters())
    for name, layer in learner.layers.items():
        for mine, letter in ((layer.a, "A"), (layer.b, "B")):
            other = theirs[f"base_model.model.{name}.lora_{letter}.default.weight"]
            torch.testing.assert_close(mine.grad, other.grad, atol=2e-4, rtol=1e-3)
    trained = {n for n, p in learner.model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * len(learner.layers)


def test_only_sampled_tokens_count_and_ids_are_kept() -> None:
    turns = (
        Turn((), {}, (1, 2, 3), (4, 5), (-0.1, -0.2)),
        Turn((), {}, (6,), (7,), (-0.3,)),
    )
    trajectory = Trajectory("t", 0, "base", (), turns, ({},), StopReason.DONE, None)
    (found,) = stretches(trajectory)
    assert found.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.sampled.tolist() == [3, 4, 6]
    assert found.logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3])
