"""Weighted sums of adapters: the arithmetic, and an episode played with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.routing.merge import Mixture, factors, merge
from trace_bench.policies.routing.router import make_router
from trace_bench.tiny import MODEL_FOLDER

MODEL = str(MODEL_FOLDER)
PLACE = "base_model.model.model.layers.0.self_attn"


def lora(folder: Path, name: str, rank: int, modules: dict[str, float], alpha: int) -> AdapterRef:
    """An adapter of the tiny model with random weights; `modules`: the size of B."""
    config = json.loads((Path(MODEL) / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    heads = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    generator = torch.Generator().manual_seed(rank)
    weights = {}
    for module, size in modules.items():
        weights[f"{PLACE}.{module}.lora_A.weight"] = torch.randn(rank, hidden, generator=generator)
        b = torch.randn(heads[module] * head, rank)
        weights[f"{PLACE}.{module}.lora_B.weight"] = size * b
    place = folder / "adapters" / name.partition("@")[0] / "0001"
    place.mkdir(parents=True)
    save_file(weights, place / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
    settings |= {"task_type": "CAUSAL_LM", "target_modules": list(modules)}
    (place / "adapter_config.json").write_text(json.dumps(settings))
    return AdapterRef(name, str(place))


def delta(ref: AdapterRef, module: str) -> torch.Tensor:
    weights = load_file(Path(ref.path) / "adapter_model.safetensors")
    config = json.loads((Path(ref.path) / "adapter_config.json").read_text())
    a, b = (weights[f"{PLACE}.{module}.lora_{x}.weight"] for x in "AB")
    return config["lora_alpha"] / config["r"] * b @ a


def test_the_sum_of_updates_is_exact(tmp_path: Path) -> None:
    one = lora(tmp_path, "one@1", 2, {"q_proj": 1.0, "v_proj": 1.0}, 8)
    two = lora(tmp_path, "two@1", 3, {"q_proj": 1.0}, 3)
    made, again = (merge(Mixture((("one@1", 0.7), ("two@1", 0.3))), [one, two]) for _ in range(2))
    assert made.name == "one@1*0.7+two@1*0.3" and made.path == again.path
    both = 0.7 * delta(one, "q_proj") + 0.3 * delta(two, "q_proj")
    torch.testing.assert_close(delta(made, "q_proj"), both)
    torch.testing.assert_close(delta(made, "v_proj"), 0.7 * delta(one, "v_proj"))


def test_a_changed_adapter_gives_another_sum(tmp_path: Path) -> None:
    one = lora(tmp_path, "one@1", 2, {"q_proj": 1.0}, 8)
    wanted = Mixture((("one@1", 0.5),))
    before = merge(wanted, [one])
    file = Path(one.path) / "adapter_model.safetensors"
    save_file({name: 2 * value for name, value in load_file(file).items()}, file)
    after = merge(wanted, [one])
    assert after.path != before.path and after.name == before.name


def test_factors_are_the_closest_matrices_of_a_rank() -> None:
    update = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    a, b = factors(update, 2)
    lost = torch.linalg.svdvals(update)[2:].square().sum().sqrt()
    torch.testing.assert_close(torch.linalg.matrix_norm(update - b @ a), lost, rtol=1e-4, atol=1e-5)
    a, b = factors(update, 20)
    torch.testing.assert_close(b @ a, update, rtol=1e-4, atol=1e-5)


def test_a_constant_sum_as_a_router() -> None:
    refs = (AdapterRef("one@1", "x"), AdapterRef("two@1", "y"))

    def router(parts: list) -> object:
        agent = AgentSpec("m", adapters=refs, router={"kind": "sum", "parts": parts})
        return make_router(agent).route((), ())

    assert router([["one@1", 0.5], ["two@1", 0.7]]) == Mixture((("one@1", 0.5), ("two@1", 0.7)))
    for parts in ([], [["one@1", float("nan")]]):
        with pytest.raises(UserError, match=r"agent\.router is the sum of"):
            router(parts)
    with pytest.raises(UserError, match=r"unknown adapter 'ten@1'"):
        router([["ten@1", 1]])
