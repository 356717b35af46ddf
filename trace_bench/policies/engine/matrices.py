"""The matrix products of a decoder's layers, in two ways.

`Merged`, for small models: norm weights are folded into the matrices that follow, and LoRA updates
are merged, one set of matrices per adapter, so that a row costs the same with and without one.
`LowRank`, for the others: the model's own weights once, in their dtype, and each adapter's update
as two thin products for its rows (merged into bfloat16, most of an update would be rounded away).

In both, query, key and value are one product, gate and up another, and the rows of query and key
are in such an order that the two numbers of a rotary pair are adjacent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trace_bench.core.types import T
from trace_bench.policies.engine.lora import Adapter
from trace_bench.policies.loading import logits

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The products of a layer, and the linear layers that each computes."""
PAIRED = ("self_attn.q_proj", "self_attn.k_proj")
BEFORE = {"qkv": "input_layernorm", "gate_up": "post_attention_layernorm"}
"""The norm that comes before a product."""

_ONE_SUM = 128  # numbers in a row that both libraries add up in one go
_FEW = 4  # fewer rows are added up in another order
_QUICKER = 6144  # numbers in a result from which oneDNN is quicker
_MANY = 128  # rows that a matrix is packed for
_onednn = torch.ops.mkldnn._linear_pointwise.default

Parts = Sequence[tuple[int, int, str | None]]
"""Runs of rows with the same adapter: first row, end row, adapter."""
Pair = tuple[Tensor, Tensor]  # A [r, in] and scale B [out, r]


class LayerWeights:
    """A Hugging Face module's weights by layer. `size`: numbers in a head. `eps`: of the norms."""

    def __init__(self, model: Any, size: int) -> None:
        self.model, self.size = model, size
        self.eps = torch.tensor(float(model.config.rms_norm_eps))
        self.layers = list(model.model.layers)
        every = dict(model.named_modules())
        self.linear = {
            f"model.layers.{i}.{place}": every[f"model.layers.{i}.{place}"]
            for i in range(len(self.layers))
            for places in FUSED.values()
            for place in places
        }

    def fused(self, name: str, layer: int, weights: Mapping[str, Tensor]) -> Tensor:
        """The matrix [out, in] of a product, from `weights` [out, in] of its linear layers."""
        rows = [self.ordered(p, weights[f"model.layers.{layer}.{p}"]) for p in FUSED[name]]
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    def ordered(self, place: str, rows: Tensor) -> Tensor:
        """The rows [out, ...] of a linear layer, those of queries and keys with pairs adjacent."""
        if place not in PAIRED:
            return rows
        heads = rows.reshape(-1, self.size, *rows.shape[1:])
        return heads[:, pairs(self.size)].reshape(rows.shape)

    def inverse(self, x: Tensor) -> Tensor:
        """1 / sqrt(mean square + eps) over the last dimension, kept as size 1."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self.eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()

    def norm(self, name: str, layer: int) -> Tensor | None:
        """The weights of the norm before a product; None if it has none."""
        place = BEFORE.get(name)
        return None if place is None else getattr(self.layers[layer], place).weight.detach()


def pairs(size: int) -> Tensor:
    """0, half, 1, half + 1, ...: rotary pairs adjacent."""
    return torch.arange(size).view(2, size // 2).t().reshape(-1)


class Matrices(ABC):
    """All products of a model. x is float32 [tokens, in], the result float32 [tokens, out]."""

    def __init__(self, source: LayerWeights) -> None:
        self._source = source
        self._linear = {n: m.weight.detach() for n, m in source.linear.items()}
        self._of: dict[str | None, list[dict[str, Any]]] = {}  # what an adapter is, by layer

    def add(self, adapter: Adapter) -> None:
        with torch.inference_mode():
            self._of[adapter.name] = self._prepared(adapter.weights)

    def remove(self, name: str) -> None:
        del self._of[name]

    def _of_all(self, one: Callable[[str, int], T]) -> list[dict[str, T]]:
        """What `one` gives for each product of each layer."""
        layers = range(len(self._source.layers))
        return [{name: one(name, layer) for name in FUSED} for layer in layers]

    @abstractmethod
    def _prepared(self, weights: Mapping[str, Pair]) -> list[dict[str, Any]]: ...

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def product(
        self, name: str, layer: int, x: Tensor, parts: Parts, add: Tensor | None = None
    ) -> Tensor:
        """x after the norm that comes before, times a layer's matrices of that name (+ add)."""


class Merged(Matrices):
    """`Matrices` of float32; see this file's docstring."""

    def __init__(self, source: LayerWeights) -> None:
        super().__init__(source)
        self._of[None] = self._prepared({})
        model = source.model
        self._head = Product((model.lm_head.weight * model.model.norm.weight).t())

    def _prepared(self, weights: Mapping[str, Pair]) -> list[dict[str, Product]]:
        merged = dict(self._linear)
        for name, (a, b) in weights.items():
            merged[name] = torch.addmm(merged[name], b, a)

        def folded(name: str, layer: int) -> Product:
            """With the weights of the norm before it."""
            matrix, norm = self._source.fused(name, layer, merged), self._source.norm(name, layer)
            return Product((matrix if norm is None else matrix * norm).t())

        return self._of_all(folded)

    def logits(self, x: Tensor) -> Tensor:
        return self._head.times(self._normed(x))

    def product(
        self, name: str, layer: int, x: Tensor, parts: Parts, add: Tensor | None = None
    ) -> Tensor:
        x = self._normed(x) if name in BEFORE else x
        matrices = [(a, b, self._of[adapter][layer][name]) for a, b, adapter in parts]
        if len(matrices) == 1:
            return matrices[0][2].times(x, add)
        out = x.new_empty(len(x), matrices[0][2].width)
        for a, b, matrix in matrices:
            matrix.times(x[a:b], None if add is None else add[a:b], out[a:b])
        return out

    def _normed(self, x: Tensor) -> Tensor:
        return x * self._source.inverse(x)


class Product:
    """x @ matrix (+ add) in float32, by whichever of torch's two libraries is quicker: oneDNN takes
    half of MKL's time for many rows. Only where both add up in the same order, so that a row's
    numbers do not depend on how many rows there are. `matrix`: [in, out]."""

    def __init__(self, matrix: Tensor) -> None:
        self.width = matrix.shape[1]
        self._matrix = matrix
        self._packed: Tensor | None = None
        if len(matrix) <= _ONE_SUM and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(matrix.t(), _MANY)

    def times(self, x: Tensor, add: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if self._packed is None or len(x) < _FEW or len(x) * self.width < _QUICKER:
            if add is None:
                return torch.mm(x, self._matrix, out=out)
            return torch.addmm(add, x, self._matrix, out=out)
        product: Tensor = _onednn(x, self._packed, None, "none", [], "")
        if add is not None:
            product.add_(add)
        return product if out is None else out.copy_(product)


class LowRank(Matrices):
    """`Matrices` in the dtype of the model's linear layers; see this file's docstring."""

    def __init__(self, source: LayerWeights) -> None:
        super().__init__(source)
        self._base = self._of_all(lambda name, i: source.fused(name, i, self._linear))
        self._norm = source.model.model.norm.weight.detach()
        self._head = source.model.lm_head.weight.detach()
        self._dtype = self._base[0]["qkv"].dtype

    def _prepared(self, weights: Mapping[str, Pair]) -> list[dict[str, Pair | None]]:
        return self._of_all(lambda name, layer: self._thin(weights, name, layer))

    def _thin(self, weights: Mapping[str, Pair], name: str, layer: int) -> Pair | None:
        """A product's thin matrices, down [r, in] and up [out, r], layers side by side, or None."""
        downs: list[Tensor] = []
        ups: list[Tensor] = []
        for place in FUSED[name]:
            full = f"model.layers.{layer}.{place}"
            beside = [torch.zeros(self._linear[full].shape[0], 0)]
            if (pair := weights.get(full)) is not None:
                downs.append(pair[0])
                beside.append(self._source.ordered(place, pair[1]))
            ups.append(torch.cat(beside, 1))
        if not downs:
            return None
        return torch.cat(downs).to(self._dtype), torch.block_diag(*ups).to(self._dtype)

    def logits(self, x: Tensor) -> Tensor:
        x = x * self._source.inverse(x) * self._norm
        if self._dtype == torch.float32:
            return functional.linear(x, self._head)
        return logits(x, self._head)

    def product(
        self, name: str, layer: int, x: Tensor, parts: Parts, add: Tensor | None = None
    ) -> Tensor:
        if (norm := self._source.norm(name, layer)) is not None:
            x = x * self._source.inverse(x) * norm
        x = x.to(self._dtype)
        out = functional.linear(x, self._base[layer][name]).float()
        for a, b, adapter in parts:
            update = None if adapter is None else self._of[adapter][layer][name]
            if update is not None:
                down, up = update
                out[a:b].add_(functional.linear(functional.linear(x[a:b], down), up))
        return out if add is None else out.add_(add)
