"""A lean forward pass of the Qwen3 architecture for batched decoding on CPU.

It computes the same function as `transformers.models.qwen3` (Qwen3 technical report, section 2:
grouped-query attention with RMSNorm on queries and keys, rotary positions, SwiGLU), rearranged so
that it consists almost only of matrix products:

- norm weights are folded into the matrices that follow; query, key and value are one product,
  gate and up another; LoRA updates are merged, one set of matrices per adapter, so that a row
  costs the same with and without an adapter;
- heads are stored with rotary pairs adjacent, so that a rotation is one complex product;
- new tokens of all rows form one flat batch without padding. Only attention separates rows: rows
  with one new token (decoding) are products over blocks of slots, each as long as its longest row,
  directly on the cache; rows with several are padded among rows of similar length.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trace_bench.policies.engine.backend import Rows, groups
from trace_bench.policies.engine.layout import BLOCK_SLOTS, Decode, Extend, Plan, make_plan
from trace_bench.policies.engine.lora import Adapter

_LARGEST = 64_000_000  # parameters; above this a merged copy per adapter wastes memory
_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_BLOCK = 64  # cache lengths are multiples of this


def supports(model: Any) -> bool:
    """Whether this module computes what `model` (a Hugging Face module) computes."""
    c = model.config
    return (
        c.model_type == "qwen3"
        and not c.attention_bias
        and c.hidden_act == "silu"
        and not c.use_sliding_window
        and getattr(model.model.rotary_emb, "rope_type", "default") == "default"
        and model.dtype == torch.float32
        and model.device.type == "cpu"
        and sum(p.numel() for p in model.parameters()) <= _LARGEST
    )


@dataclass(frozen=True)
class _Layer:
    """One layer's matrices, [in, out], norms folded in."""

    qkv: Tensor
    heads: Tensor  # norm weights of queries (scaled by 1/sqrt(head)) and keys [H + Hkv, D]
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Qwen3:
    """Backend over the weights of a Hugging Face Qwen3 module; see this file's docstring."""

    def __init__(self, model: Any, slots: int, context: int) -> None:
        c = model.config
        self.slots, self.context, self.block = slots, context, BLOCK_SLOTS
        self.vocab, self.hidden = int(c.vocab_size), int(c.hidden_size)
        self.heads, self.kv = int(c.num_attention_heads), int(c.num_key_value_heads)
        self.size = int(c.head_dim)
        self.eps = torch.tensor(float(c.rms_norm_eps))
        self._layers = list(model.model.layers)
        linear = {
            name: module.weight.detach()
            for name, module in model.named_modules()
            if name.rpartition(".")[2] in _PARTS
        }
        self._linear = linear
        self.shapes: Mapping[str, tuple[int, int]] = {
            name: (w.shape[0], w.shape[1]) for name, w in linear.items()
        }
        with torch.inference_mode():
            self._base = self._pack(linear)
            self._merged: dict[str, list[_Layer]] = {}
            self._embedding = model.model.embed_tokens.weight.detach()
            self._head = (model.lm_head.weight * model.model.norm.weight).t()
            rotary = model.model.rotary_emb
            angles = torch.outer(torch.arange(context).float(), rotary.inv_freq.float())
            self._rotation = torch.polar(torch.ones_like(angles), angles)[:, None]
            self._cache = self._new_cache(_BLOCK)
            self._spread = torch.zeros(slots, self.heads * self.size)
            self._buffer = torch.zeros(0, self.heads * self.size)

    def alone(self) -> AbstractContextManager[object]:
        return nullcontext()  # adapters are merged into copies here; the model is untouched

    def add(self, adapter: Adapter) -> None:
        """Merges an adapter into its own set of matrices."""
        with torch.inference_mode():
            merged = dict(self._linear)
            for name, (a, b) in adapter.weights.items():
                merged[name] = torch.addmm(merged[name], b, a)
            self._merged[adapter.name] = self._pack(merged)

    def remove(self, name: str) -> None:
        del self._merged[name]

    def copy(self, source: int, target: int, length: int) -> None:
        self._cache[:, :, target, :, :length] = self._cache[:, :, source, :, :length]

    def forward(self, rows: Rows) -> Tensor:
        """See `Backend.forward`."""
        self._reserve(int((rows.starts + rows.counts).max()))
        plan = make_plan(rows, self._rotation, (self.slots, self.kv, self._cache.shape[-2]))
        ends = np.cumsum(rows.counts)
        parts = [
            (0 if first == 0 else int(ends[first - 1]), int(ends[end - 1]), self._weights(name))
            for name, first, end in groups(rows.adapters)
        ]
        x = self._embedding.index_select(0, torch.from_numpy(rows.ids))
        for i in range(len(self._layers)):
            x = self._layer(x, i, [(a, b, layers[i]) for a, b, layers in parts], plan)
        last = x.index_select(0, torch.from_numpy(ends - 1))
        return torch.mm(self._normed(last), self._head)

    def _layer(
        self, x: Tensor, index: int, parts: list[tuple[int, int, _Layer]], plan: Plan
    ) -> Tensor:
        heads = self.heads + self.kv
        h = self._normed(x)
        qkv = _product(h, [(a, b, p.qkv) for a, b, p in parts])
        qkv = qkv.view(len(x), heads + self.kv, self.size)
        qk = qkv[:, :heads]
        qk.mul_(self._inverse(qk))
        for a, b, p in parts:
            (qk[a:b] if len(parts) > 1 else qk).mul_(p.heads)
        torch.view_as_complex(qkv.view(*qkv.shape[:2], -1, 2))[:, :heads].mul_(plan.rotation)
        cache = self._cache[index]
        new = qkv[:, self.heads :].reshape(-1, self.size)
        cache.view(-1, self.size).index_copy_(0, plan.lines, new)
        h = self._attend(qkv[:, : self.heads], cache, plan)
        x = _product(h, [(a, b, p.out) for a, b, p in parts], x)
        h = self._normed(x)
        gate_up = _product(h, [(a, b, p.gate_up) for a, b, p in parts])
        gate, up = gate_up.chunk(2, dim=1)
        h = torch.nn.functional.silu(gate).mul_(up)
        return _product(h, [(a, b, p.down) for a, b, p in parts], x)

    def _attend(self, q: Tensor, cache: Tensor, plan: Plan) -> Tensor:
        """Queries [tokens, H, D] -> [tokens, H * D]."""
        q = q.reshape(-1, self.heads * self.size).contiguous()
        d = plan.decode
        if d is not None and d.whole and not plan.extends:
            return self._attend_decode(q, cache, d)
        out = torch.empty_like(q)
        if d is not None:
            # Slots without a row keep an old query; their outputs are not read.
            spread = self._spread[: d.span]
            spread.index_copy_(0, d.slots, q.index_select(0, d.tokens))
            answer = self._attend_decode(spread, cache, d)
            out.index_copy_(0, d.tokens, answer.index_select(0, d.slots))
        for e in plan.extends:
            out.index_copy_(0, e.tokens, self._attend_extend(q, cache, e))
        return out

    def _attend_decode(self, q: Tensor, cache: Tensor, d: Decode) -> Tensor:
        """Queries in slot order [span, H * D]; keys and values are not copied."""
        queries = q.view(d.span * self.kv, -1, self.size)
        keys, values = cache.view(2, -1, cache.shape[-2], self.size)
        out = torch.empty_like(queries)
        for first, end, length in d.blocks:
            a, b = first * self.kv, end * self.kv
            scores = torch.bmm(queries[a:b], keys[a:b, :length].transpose(1, 2))
            scores.view(end - first, -1, length).add_(d.bias[first:end, :, :length])
            torch.bmm(torch.softmax(scores, -1), values[a:b, :length], out=out[a:b])
        return out.view(d.span, -1)

    def _attend_extend(self, q: Tensor, cache: Tensor, e: Extend) -> Tensor:
        """Flat queries [tokens, H * D] -> the outputs of this bucket's tokens."""
        rows, group = len(e.slots), self.heads // self.kv
        padded = self._padded(rows * e.width)
        padded.index_copy_(0, e.places, q.index_select(0, e.tokens))
        padded = padded.view(rows, e.width, self.kv, group, self.size).permute(0, 2, 3, 1, 4)
        keys, values = (
            c[:, :, : e.keys].index_select(0, e.slots).view(-1, e.keys, self.size) for c in cache
        )
        scores = torch.bmm(
            padded.reshape(rows * self.kv, -1, self.size), keys.transpose(1, 2)
        ).view(rows, self.kv, group, e.width, e.keys)
        weights = torch.softmax(scores.add_(e.bias), -1)
        answer = torch.bmm(weights.view(rows * self.kv, -1, e.keys), values)
        answer = answer.view(rows, self.kv, group, e.width, self.size).permute(0, 3, 1, 2, 4)
        return answer.reshape(rows * e.width, -1).index_select(0, e.places)

    def _padded(self, rows: int) -> Tensor:
        """A reused buffer for padded queries; old values in it are never read."""
        if len(self._buffer) < rows:
            self._buffer = torch.zeros(rows, self.heads * self.size)
        return self._buffer[:rows]

    def _inverse(self, x: Tensor) -> Tensor:
        """1 / sqrt(mean square + eps) over the last dimension, kept as size 1."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self.eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()

    def _normed(self, x: Tensor) -> Tensor:
        return x * self._inverse(x)

    def _weights(self, name: str | None) -> list[_Layer]:
        return self._base if name is None else self._merged[name]

    def _new_cache(self, length: int) -> Tensor:
        """An empty cache [layers, 2 (keys, values), slots, Hkv, length, D]."""
        shape = (len(self._layers), 2, self.slots, self.kv, length, self.size)
        return torch.zeros(shape)

    def _reserve(self, length: int) -> None:
        """Grows the cache to at least `length` tokens per slot, by doubling, up to the context."""
        have = self._cache.shape[-2]
        if length <= have:
            return
        blocks = -(-max(length, 2 * have) // _BLOCK) * _BLOCK
        grown = self._new_cache(max(length, min(blocks, self.context)))
        grown[..., :have, :] = self._cache
        self._cache = grown

    def _pack(self, linear: Mapping[str, Tensor]) -> list[_Layer]:
        return [
            self._pack_layer(layer, {p: linear[f"model.layers.{i}.{_place(p)}"] for p in _PARTS})
            for i, layer in enumerate(self._layers)
        ]

    def _pack_layer(self, layer: Any, w: Mapping[str, Tensor]) -> _Layer:
        """Fuses, folds and transposes one layer's weights [out, in]."""
        half = self.size // 2
        pairs = torch.arange(self.size).view(2, half).t().reshape(-1)  # 0, half, 1, half + 1, ...

        def paired(matrix: Tensor) -> Tensor:
            return matrix.view(-1, self.size, self.hidden)[:, pairs].reshape(matrix.shape)

        attention = layer.self_attn
        before, after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        qkv = torch.cat([paired(w["q_proj"]), paired(w["k_proj"]), w["v_proj"]]) * before
        q_norm = attention.q_norm.weight[pairs] * self.size**-0.5
        k_norm = attention.k_norm.weight[pairs]
        return _Layer(
            qkv=qkv.t(),
            heads=torch.cat([q_norm.expand(self.heads, -1), k_norm.expand(self.kv, -1)]),
            out=w["o_proj"].t(),
            gate_up=(torch.cat([w["gate_proj"], w["up_proj"]]) * after).t(),
            down=w["down_proj"].t(),
        )


def _place(part: str) -> str:
    return f"{'mlp' if part in ('gate_proj', 'up_proj', 'down_proj') else 'self_attn'}.{part}"


def _product(x: Tensor, parts: list[tuple[int, int, Tensor]], add: Tensor | None = None) -> Tensor:
    """x @ w (+ add), each run of rows with its own w."""
    if len(parts) == 1:
        w = parts[0][2]
        return torch.mm(x, w) if add is None else torch.addmm(add, x, w)
    out = x.new_empty(len(x), parts[0][2].shape[1])
    for a, b, w in parts:
        if add is None:
            torch.mm(x[a:b], w, out=out[a:b])
        else:
            torch.addmm(add[a:b], x[a:b], w, out=out[a:b])
    return out
