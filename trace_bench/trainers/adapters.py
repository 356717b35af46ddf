"""LoRA on a model's linear layers, written as PEFT writes it.

W + (alpha / rank) · B A with A [rank, in] drawn uniformly and B [out, rank] zero at the start (Hu
et al. 2021, section 4.1), so that training begins at the base model.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from trace_bench.errors import unknown
from trace_bench.store import disk_errors, stable_seed, write_text

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained update of low rank."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        like = base.weight
        self.a = nn.Parameter(like.new_zeros(rank, base.in_features))
        self.b = nn.Parameter(like.new_zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        update = nn.functional.linear(nn.functional.linear(x, self.a * self.scale), self.b)
        return self.base(x) + update

    @torch.no_grad()
    def restart(self, seed: int) -> None:
        """A as PEFT draws it by default (uniform within ±1/sqrt(in)), B zero."""
        generator = torch.Generator().manual_seed(seed)
        bound = 1.0 / math.sqrt(self.base.in_features)
        drawn = torch.empty(self.a.shape).uniform_(-bound, bound, generator=generator)
        self.a.copy_(drawn)
        self.b.zero_()


def insert(model: nn.Module, targets: Iterable[str], rank: int, alpha: float) -> dict[str, Any]:
    """Freezes the model and wraps every linear layer whose name ends in one of `targets`;
    name -> LoraLinear. Raises UserError for a target that no layer has."""
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    kinds = {name.rpartition(".")[2] for name in linear} - {"lm_head"}
    wanted = set(targets)
    if missing := sorted(wanted - kinds):
        raise unknown("LoRA target", ", ".join(missing), sorted(kinds), "trainer.target_modules")
    if not wanted:
        raise unknown("LoRA target", "nothing", sorted(kinds), "trainer.target_modules")
    model.requires_grad_(False)
    layers: dict[str, LoraLinear] = {}
    for name, module in linear.items():
        parent, _, kind = name.rpartition(".")
        if kind in wanted:
            layers[name] = LoraLinear(module, rank, alpha / rank)
            setattr(model.get_submodule(parent), kind, layers[name])
    return layers


def restart(layers: Mapping[str, LoraLinear], seed: int) -> None:
    """A fresh adapter; every layer draws from its own stream."""
    for name, layer in layers.items():
        layer.restart(stable_seed(seed, "lora", name))


def write_adapter(
    folder: Path, layers: Mapping[str, LoraLinear], settings: Mapping[str, Any], model: str
) -> None:
    """adapter_config.json and adapter_model.safetensors in `folder`, which appears whole or not
    at all. `settings`: rank, alpha, target_modules. A model that is a folder on this machine is
    named by its last part."""
    weights: dict[str, Tensor] = {}
    for name, layer in layers.items():
        weights[f"base_model.model.{name}.lora_A.weight"] = layer.a
        weights[f"base_model.model.{name}.lora_B.weight"] = layer.b
    plain = {k: v.detach().cpu().contiguous() for k, v in weights.items()}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": Path(model).name if Path(model).is_dir() else model,
        "r": settings["rank"],
        "lora_alpha": settings["alpha"],
        "target_modules": sorted(settings["target_modules"]),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    write_text(building / CONFIG, json.dumps(config, indent=2) + "\n")
    write_bytes(building / WEIGHTS, save(plain, metadata={"format": "pt"}))
    shutil.rmtree(folder, ignore_errors=True)  # the same version, from an interrupted iteration
    building.rename(folder)


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces a file in one step. Raises UserError when the disk is full."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
