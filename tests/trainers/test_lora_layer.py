"""The LoRA layer's own gradient against autograd's for the same products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from trace_bench.trainers.adapters import LoraLinear, restart


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
def test_answers_and_gradients_are_those_of_autograd(
    dtype: torch.dtype, off: float, bias: bool
) -> None:
    layer = layer_of(dtype, bias)
    layer.a.requires_grad_(True)
    layer.b.requires_grad_(True)
    found = []
    for forward in (layer, lambda x: plain(layer, x)):
        x = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(2)).requires_grad_(True)
        out = forward(x)
        loss = (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()
        found.append((out, *torch.autograd.grad(loss, (x, layer.a, layer.b))))
    for own, expected in zip(*found, strict=True):
        assert own.shape == expected.shape and own.dtype == expected.dtype
        assert (own - expected).abs().max() <= off * expected.abs().max()


def test_a_scale_may_have_a_gradient() -> None:
    layer = layer_of(torch.float32, bias=False)
    layer.scale = torch.full((4, 1), 2.0, requires_grad=True)
    x = torch.randn(3, 24)
    (own,) = torch.autograd.grad(layer(x).square().sum(), layer.scale)
    (expected,) = torch.autograd.grad(plain(layer, x).square().sum(), layer.scale)
    assert torch.allclose(own, expected, rtol=1e-4) and own.abs().min() > 0


def test_an_input_without_a_gradient_and_a_frozen_layer() -> None:
    layer = layer_of(torch.float32, bias=True)
    layer.b.requires_grad_(True)
    layer(torch.ones(3, 24)).sum().backward()
    assert layer.b.grad is not None and layer.b.grad.abs().sum() > 0
    assert layer.a.grad is None and layer.base.weight.grad is None
