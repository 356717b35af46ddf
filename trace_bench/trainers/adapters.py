"""LoRA on a model's linear layers, stored in PEFT's format.

W + (alpha / rank) · B A with A [rank, in] drawn uniformly and B [out, rank] zero at the start (Hu
et al. 2021, section 4.1), so that training begins at the base model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trace_bench.core.errors import unknown
from trace_bench.core.store import replacing, stable_seed, write_bytes, write_text
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import CONFIG, WEIGHTS, read_adapter
from trace_bench.policies.loading import without_weights
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.job import check_start


class LoraLinear(nn.Module):
    """A frozen linear layer with a trainable low-rank update in float32; products as its weight."""

    scale: float | Tensor  # a gate has one for each row of A, [rank, 1], with a gradient

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        like = base.weight
        self.a = nn.Parameter(like.new_zeros(rank, base.in_features, dtype=torch.float32))
        self.b = nn.Parameter(like.new_zeros(base.out_features, rank, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        kind = self.base.weight.dtype
        a, b = (self.a * self.scale).to(kind), self.b.to(kind)
        return _Updated.apply(x, self.base.weight, self.base.bias, a, b)


class _Updated(torch.autograd.Function):
    """x W' + bias + (x A') B', W' the transpose of W, products in the dtype of W, A and B. What
    autograd would do for them, with fewer copies in both dtypes; no gradient for W and the bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Tensor:
        low = x.to(weight.dtype)
        thin = functional.linear(low, a)
        out = functional.linear(low, weight, bias).to(x.dtype)
        out += functional.linear(thin, b)
        ctx.save_for_backward(low, thin, weight, a, b)
        ctx.kind = x.dtype
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        low, thin, weight, a, b = ctx.saved_tensors
        gradient = gradients[0].to(weight.dtype)
        flat = gradient.reshape(-1, gradient.shape[-1])
        through = flat @ b  # [tokens, rank]
        of_b = flat.t() @ thin.reshape(-1, thin.shape[-1])
        of_a = through.t() @ low.reshape(-1, low.shape[-1])
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.addmm(flat @ weight, through, a).view(low.shape).to(ctx.kind)
        return of_x, None, None, of_a, of_b


def _drawn(rank: int, width: int, seed: int, layer: str) -> Tensor:
    """A as PEFT draws it by default, uniform within ±1/sqrt(width); each layer has its stream."""
    generator = torch.Generator().manual_seed(stable_seed(seed, "lora", layer))
    bound = 1.0 / math.sqrt(width)
    return torch.empty(rank, width).uniform_(-bound, bound, generator=generator)


def targeted(model: nn.Module, targets: Iterable[str]) -> dict[str, nn.Linear]:
    """The linear layers whose name ends in one of `targets`. Raises UserError for a target that
    matches none, such as a mixture's experts: transformers keeps them as one parameter a layer."""
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    kinds = {name.rpartition(".")[2] for name in linear} - {"lm_head"}
    wanted = set(targets)
    missing = sorted(wanted - kinds)
    if missing or not wanted:
        mixed = any(".experts." in name for name, _ in model.named_parameters())
        why = " (the experts of a layer are one parameter, which has no adapter)" if mixed else ""
        lacking = (", ".join(missing) or "nothing") + why
        raise unknown("LoRA target", lacking, sorted(kinds), "trainer.target_modules")
    return {n: m for n, m in linear.items() if n.rpartition(".")[2] in wanted}


def insert(model: nn.Module, targets: Iterable[str], rank: int, alpha: float) -> dict[str, Any]:
    """Freezes the model and wraps its `targeted` layers; returns them by name."""
    chosen = targeted(model, targets)
    model.requires_grad_(False)
    layers: dict[str, LoraLinear] = {}
    for name, module in chosen.items():
        parent, _, kind = name.rpartition(".")
        layers[name] = LoraLinear(module, rank, alpha / rank)
        setattr(model.get_submodule(parent), kind, layers[name])
    return layers


@torch.no_grad()
def largest_update(layers: Mapping[str, LoraLinear]) -> tuple[float, str]:
    """The largest Frobenius norm of the layers' updates scale * B A, and its layer; a norm that is
    not finite counts as larger than all others."""
    norms: dict[str, Any] = {}
    for name, layer in layers.items():
        square = float(((layer.b.t() @ layer.b) * (layer.a @ layer.a.t())).sum())
        norms[name] = layer.scale * abs(square) ** 0.5
    name = max(norms, key=lambda name: norms[name] if math.isfinite(norms[name]) else math.inf)
    return norms[name], name


@torch.no_grad()
def restart(layers: Mapping[str, LoraLinear], seed: int) -> None:
    for name, layer in layers.items():
        rank, width = layer.a.shape
        layer.a.copy_(_drawn(rank, width, seed, name))
        layer.b.zero_()


@dataclass(frozen=True)
class Pair:
    """The weights of one layer's update: a [rank, in], b [out, rank]."""

    a: Tensor
    b: Tensor


def fresh(path: str, targets: Iterable[str], rank: int, seed: int) -> dict[str, Pair]:
    """The adapter that `restart` gives, computed from the model's configuration alone.

    Raises UserError for a model that cannot be read or a target that matches no layer."""
    chosen = targeted(without_weights(path), targets)
    return {
        name: Pair(_drawn(rank, x.in_features, seed, name), torch.zeros(x.out_features, rank))
        for name, x in chosen.items()
    }


def write_adapter(
    folder: Path,
    layers: Mapping[str, LoraLinear] | Mapping[str, Pair],
    settings: Mapping[str, Any],
    model: str,
) -> None:
    """Writes the adapter to `folder`, atomically. `settings`: with rank, alpha, target_modules. A
    local model is named by the last part of its path."""
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
    with replacing(folder) as building:  # of the same version, from an interrupted iteration
        write_text(building / CONFIG, json.dumps(config, indent=2) + "\n")
        write_bytes(building / WEIGHTS, save(plain, metadata={"format": "pt"}))


def begin_with(
    layers: Mapping[str, LoraLinear] | Mapping[str, Pair], start: AdapterRef, recipe: Recipe
) -> None:
    """Puts an adapter's weights into freshly drawn layers, which then compute what it computes. If
    it has a smaller rank, or no weights for a layer, the rest stays as drawn, with zeros in B.
    Raises UserError for one that does not fit."""
    check_start(start, recipe)
    shapes = {name: (x.b.shape[0], x.a.shape[1]) for name, x in layers.items()}
    scale = recipe.alpha / recipe.rank
    with torch.no_grad():
        for name, (a, scaled) in read_adapter(start, shapes).weights.items():
            own, layer = a.shape[0], layers[name]
            layer.a[:own] = a.to(layer.a)
            layer.b[:, :own] = (scaled / scale).to(layer.b)
