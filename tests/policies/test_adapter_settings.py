"""The settings of PEFT that an adapter may have: those whose meaning is known are computed as PEFT
does, and all others are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from playing import play
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy import ToySuite, toy_task

from trace_bench.core.errors import UserError
from trace_bench.core.types import AdapterRef, AgentSpec
from trace_bench.policies.engine.lora import ALLOWED
from trace_bench.policies.loading import load_model
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.merge import Mixture, merge

STRANGE: dict[str, list[Any]] = {
    "init_lora_weights": ["pissa", "pissa_niter_4", "olora", "loftq", "corda", "lora_ga", None],
    "peft_type": ["LOHA", None],
    "bias": ["all"],
    "alora_invocation_tokens": [[1, 2]],
    "modules_to_save": [["lm_head"]],
    "rank_pattern": [{"q_proj": 8}],
    "use_dora": [True],
    "fan_in_fan_out": [True],
    "trainable_token_indices": [[3]],
    "a_setting_of_tomorrow": [True],
}


def changed(adapter: Path, folder: Path, **settings: Any) -> AgentSpec:
    """An agent with a copy of the adapter whose configuration has these settings."""
    shutil.copytree(adapter, folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return AgentSpec("m", adapters=(AdapterRef("x@1", str(folder)),))


@pytest.fixture(scope="module")
def policy(small_model: Path) -> LocalPolicy:
    """For adapters that it refuses."""
    return LocalPolicy(small_model, batch=1)


EACH = [(name, value) for name, values in STRANGE.items() for value in values]


@pytest.mark.parametrize(("name", "value"), EACH)
def test_a_setting_that_changes_what_an_adapter_means_is_refused(
    name: str, value: Any, policy: LocalPolicy, small_adapter: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"has {name}=.*; plain LoRA has"):
        policy.load(changed(small_adapter, tmp_path / "x", **{name: value}))
    assert policy._adapters == set()


def test_an_adapter_has_the_rank_that_it_says(
    policy: LocalPolicy, small_adapter: Path, tmp_path: Path
) -> None:
    """Also where it is a part of a sum."""
    with pytest.raises(UserError, match=r"has r=8 and tensors of the ranks \[4\]"):
        policy.load(changed(small_adapter, tmp_path / "other", r=8))
    mixed = changed(small_adapter, tmp_path / "mixed")
    file = tmp_path / "mixed" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if ".lora_A." in name)
    other = name.replace(".lora_A.", ".lora_B.")
    tensors[name], tensors[other] = tensors[name][:2].clone(), tensors[other][:, :2].clone()
    save_file(tensors, file)
    with pytest.raises(UserError, match=r"has r=4 and tensors of the ranks \[2, 4\]"):
        policy.load(mixed)
    with pytest.raises(UserError, match=r"tensors of the ranks \[2, 4\]"):
        merge(Mixture((("x@1", 0.5),)), mixed.adapters, tmp_path / "sums")
    save_file({}, file)
    with pytest.raises(UserError, match="holds no tensors"):
        policy.load(mixed)


@pytest.mark.parametrize("init", ALLOWED["init_lora_weights"])
@pytest.mark.parametrize("rslora", ALLOWED["use_rslora"])
def test_an_allowed_adapter_computes_what_peft_computes(
    init: Any, rslora: bool, small_model: Path, tmp_path: Path
) -> None:
    """The log-probabilities of the tokens that it sampled."""
    how: dict[str, Any] = {"init_lora_weights": init, "use_rslora": rslora}
    config = LoraConfig(r=4, lora_alpha=3, target_modules="all-linear", **how)
    model = get_peft_model(load_model(str(small_model))[0], config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.1 * torch.randn(weight.shape))
    model.save_pretrained(str(tmp_path / "x"))
    agent = AgentSpec(str(small_model), adapters=(AdapterRef("x@1", str(tmp_path / "x")),))
    policy = LocalPolicy(small_model, batch=1)
    (played,) = play(policy, ToySuite(), agent, [toy_task(0)], [7], route=["x@1"], max_tokens=24)
    turn = played.turns[0]
    ids, start = [*turn.prompt_ids, *turn.token_ids], len(turn.prompt_ids)
    plain, loaded = (load_model(str(small_model))[0] for _ in range(2))
    alike, base = (
        logprobs(each, ids)[range(start - 1, len(ids) - 1), list(turn.token_ids)]
        for each in (PeftModel.from_pretrained(loaded, str(tmp_path / "x")).eval(), plain)
    )
    sampled = torch.tensor(turn.logprobs)
    assert sampled.allclose(alike, atol=1e-4) and not sampled.allclose(base, atol=1e-2)


@torch.no_grad()
def logprobs(model: Any, ids: list[int]) -> Tensor:
    return model(torch.tensor([ids])).logits[0].log_softmax(-1)
