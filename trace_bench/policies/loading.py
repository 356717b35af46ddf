"""Models from a folder or a hub name, through transformers: all that is read of them is read here.
A program that comes with a model is run only where the settings ask for it
(`model.trust_remote_code`); without an answer transformers would ask at the terminal.

The numbers that models compute in are here too: `policy.dtype`, for the sampler and the trainer
alike. With bfloat16 the linear layers keep their weights and compute their products in it. All else
stays in float32: the hidden state that layers add to, norms, positions and the logits; attention
too, but in the project's own engine, whose cache and factors are in bfloat16 (`engine.decoder`).
Roundings are not equal even at the same places of a deep model: sampler and trainer of SmolLM2 are
some 0.003 apart in log-probability after a cold start and 0.02 before, which is why a trainer with
rounded products takes its own log-probabilities for the old policy's (`trainers.update`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trace_bench.core.errors import UserError
from trace_bench.policies.hub import trusted

DType = Literal["auto", "float32", "bfloat16"]
SMALL = 64_000_000  # parameters; up to here float32 is as quick, and rounding is not worth it


def load_model(
    model_path: str | Path, device: str = "cpu", dtype: DType = "float32"
) -> tuple[Any, Any]:
    """(model in evaluation mode, tokenizer). `dtype`: the numbers of its products. Raises
    UserError, as all of these do, for what cannot be loaded."""
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(model_path)
    with _loading(model_path) as trust:
        model: Any = AutoModelForCausalLM.from_pretrained(  # the stub of `to` has another type
            model_path, dtype="auto", trust_remote_code=trust
        )
    size = sum(p.numel() for p in model.parameters())
    cast_products(model, chosen(dtype, size, device))
    return model.to(device).eval(), tokenizer


def load_tokenizer(model_path: str | Path) -> Any:
    from transformers import AutoTokenizer

    with _loading(model_path) as trust:
        return AutoTokenizer.from_pretrained(model_path, trust_remote_code=trust)


def load_config(model_path: str | Path) -> Any:
    from transformers import AutoConfig

    with _loading(model_path) as trust:
        return AutoConfig.from_pretrained(model_path, trust_remote_code=trust)


def without_weights(model_path: str | Path) -> Any:
    """The model on torch's device "meta", from its configuration."""
    from transformers import AutoModelForCausalLM

    config = load_config(model_path)
    with _loading(model_path) as trust, torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust)


@contextmanager
def _loading(model_path: str | Path) -> Iterator[bool]:
    """Loads without progress bars, and raises UserError for what cannot be loaded. Gives whether
    the model's own program may run."""
    place = str(model_path)
    if not Path(place).exists() and (place[:1] in "./~" or place.count("/") > 1):
        raise UserError(
            f"cannot load a model from {place!r}: there is no such folder. Change `model.path`."
        )
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # transformers' bar for loading would disturb ours
    try:
        yield trusted(place)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        if "trust_remote_code" in why:
            raise UserError(
                f"the model {place!r} comes with a program of its own, and none is run here. Serve "
                "it with vLLM's --trust-remote-code and policy=openai, change `model.path`, or, if "
                "you have read that program, set model.trust_remote_code=true (model=hf)."
            ) from error
        raise UserError(
            f"cannot load a model from {place!r}: {why}. Needed: a folder or hub name of a Hugging "
            "Face causal language model. Change the setting `model`."
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()


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
    instructions = torch.cpu.get_capabilities()
    return bool(
        instructions.get("avx512_bf16") or instructions.get("amx_bf16") or instructions.get("bf16")
    )


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
        layer = kind(module.in_features, module.out_features, bias=module.bias is not None)
    layer.weight, layer.bias = module.weight, module.bias
    return layer.train(module.training)
