"""The formulas of `trainers/memory.py` against what torch allocates for a random small Qwen3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from passes import lora_pass, needed, peak, plain_model

from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.memory import SHAPES, shape_of

ATTENTION = LINEAR[:4]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-8B", 8.19), ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.53), ("Qwen3-4B", 4.02),
     ("Qwen2.5-7B-Instruct", 7.62), ("Qwen3-0.6B", 0.596), ("Qwen3-32B", 32.76)],
)  # fmt: skip
def test_the_families_have_the_parameters_of_their_names(name: str, billions: float) -> None:
    shape = shape_of(name)
    assert shape is not None and shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_name_is_not_taken_for_another() -> None:
    assert shape_of("Qwen/Qwen3-32B") is SHAPES["Qwen3-32B"]
    assert shape_of("Qwen/Qwen3-3") is None and shape_of("org/unknown-8B") is None
    assert SHAPES["Qwen3-30B-A3B"].kv_token == 98304


def test_layers_of_other_names_stop_no_estimate() -> None:
    shape, rank = SHAPES["Qwen3-8B"], 8
    queries, others, hidden = 32 * 128, 2 * 8 * 128, 4096
    assert shape.lora(rank, ["qkv_proj"]) == 36 * rank * (hidden + queries + others)
    assert shape.lora(rank, ["qkv_proj", "nowhere"]) == shape.lora(rank, ["qkv_proj"])


@pytest.mark.parametrize("targets", [LINEAR, ATTENTION])
def test_what_a_miniature_allocates_is_within_15_percent(tmp_path, targets) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "head_dim": 32,
        "intermediate_size": 384,
    }
    shape, plain = plain_model(tmp_path, **sizes)
    held = sum(p.nbytes for p in plain.parameters())
    assert 2 * shape.parameters == pytest.approx(held, rel=0.15)
    ids = torch.randint(0, 600, (1, 256))
    with torch.no_grad():
        cache = plain(input_ids=ids, use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert 256 * shape.kv_token == pytest.approx(kept, rel=0.15)
    lora, work = lora_pass(plain, targets, ids)
    found = peak(work)
    assert needed(shape, targets, 256) == pytest.approx(found, rel=0.15)
    optimizer = torch.optim.AdamW(lora)
    optimizer.step()
    moments = [v for s in optimizer.state.values() for n, v in s.items() if n != "step"]
    tensors = [*lora, *(p.grad for p in lora if p.grad is not None), *moments]
    assert 4 * 2 * shape.lora(8, targets) == sum(t.nbytes for t in tensors)
