"""In which numbers a model computes: `policy.dtype`, for the sampler and the trainer alike.

With bfloat16 the linear layers keep their weights in it and compute their products in it. All else
stays in float32: the hidden state that layers add to, norms, positions and the logits; attention
too, but in the project's own engine, whose cache and factors are in bfloat16 (`engine.decoder`).
Roundings are not equal even at the same places of a deep model: sampler and trainer of SmolLM2 are
some 0.003 apart in log-probability after a cold start and 0.02 before, which is why a trainer with
rounded products takes its own log-probabilities for the old policy's (`trainers.update`).
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trace_bench.core.errors import UserError

DType = Literal["auto", "float32", "bfloat16"]
SMALL = 64_000_000  # parameters; up to here float32 is as quick, and rounding is not worth it


def chosen(dtype: DType, parameters: int, device: str) -> torch.dtype:
    """The numbers of the products. "auto": bfloat16 for a model of more than SMALL parameters where
    the processor has instructions for it. Raises UserError for bfloat16 where it has none."""
    if dtype == "float32" or (dtype == "auto" and parameters <= SMALL):
        return torch.float32
    if _quick(device):
        return torch.bfloat16
    if dtype == "auto":
        return torch.float32
    raise UserError(
        f"policy.dtype=bfloat16: this processor ({device}) has no instructions for it, so it would "
        "be slower than float32. Change `policy.dtype`; allowed here: auto, float32."
    )


@functools.cache
def _quick(device: str) -> bool:
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16") or known.get("bf16"))


class CastLinear(nn.Linear):
    """A linear layer that computes in the dtype of its weight and answers in that of its input."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return functional.linear(input.to(self.weight.dtype), self.weight, self.bias).to(
            input.dtype
        )


class CastHead(nn.Linear):
    """The output matrix, in float32: the logits are not rounded, the factors of a product are."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> logits [..., vocab]."""
        return logits(input, self.weight)


def logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden [..., in] and weight [vocab, in], both float32 -> [..., vocab] float32. On a CPU the
    factors are rounded to bfloat16 and the sum is not."""
    return _Logits.apply(hidden, weight)


class _Logits(torch.autograd.Function):
    """No gradient for the weight, which no adapter changes here."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            return functional.linear(hidden, weight)
        finally:
            torch.set_float32_matmul_precision(before)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        (gradient,) = gradients
        return (gradient.bfloat16() @ weight.bfloat16()).float(), None


def cast_products(model: Any, dtype: torch.dtype) -> None:
    """Gives the model's linear layers weights and products in `dtype`, and leaves all else in
    float32. The model's parameters may be in any dtype before."""
    if dtype == torch.float32:
        model.float()
        return
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        if isinstance(module, nn.Linear) and module is not head:
            module.to(dtype)
        else:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.float()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            parent, _, last = name.rpartition(".")
            kind = CastHead if module is head and module.bias is None else CastLinear
            setattr(model.get_submodule(parent), last, _like(module, kind))


def _like(module: nn.Linear, kind: type[nn.Linear]) -> nn.Linear:
    """A layer of another kind with the same parameters."""
    with torch.device("meta"):
        made = kind(module.in_features, module.out_features, bias=module.bias is not None)
    made.weight, made.bias = module.weight, module.bias
    return made.train(module.training)
