"""A lean forward pass of Llama and Qwen3 for batched decoding on CPU.

It computes the same function as `transformers.models` (Qwen3 technical report, section 2, and
Llama, Touvron et al. 2023: grouped-query attention, RMSNorm on queries and keys in Qwen3 only,
rotary positions, SwiGLU), rearranged so that it consists almost only of matrix products:

- the products of a layer are four (`matrices`);
- heads are stored with rotary pairs adjacent, so that a rotation is one complex product;
- new tokens of all rows form one flat batch without padding. Only attention separates rows: rows
  with one new token (decoding) are products over blocks of slots, each as long as its longest row,
  directly on the cache; rows with several are padded among rows of similar length.

And sampling that does not depend on the other episodes in the batch: each token uses one number of
its episode's own counter-based stream (Philox4x64-10, Salmon et al. 2011), keyed by the episode's
seed and the position where the turn starts, and maps it to a token by the inverse of the cumulative
distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trace_bench.policies.engine import matrices
from trace_bench.policies.engine.layout import (
    BLOCK,
    BLOCK_SLOTS,
    Decode,
    Extend,
    Layout,
    Rows,
    groups,
    grown,
    make_layout,
)
from trace_bench.policies.engine.lora import Adapter
from trace_bench.policies.loading import SMALL

_KINDS = ("llama", "qwen3")
_ROPES = ("default", "linear", "llama3")  # those whose angles do not depend on the length


def supports(model: Any) -> bool:
    """Whether this module computes what `model` (a Hugging Face module) computes."""
    c = model.config
    if c.model_type not in _KINDS or model.device.type != "cpu":
        return False
    rotary = model.model.rotary_emb
    linear = (m for m in model.modules() if isinstance(m, torch.nn.Linear))
    return (
        c.hidden_act == "silu"
        and not getattr(c, "use_sliding_window", False)
        and rotary.rope_type in _ROPES
        and rotary.attention_scaling == 1.0
        and all(m.bias is None for m in linear)
    )


class Decoder:
    """Backend over the weights of a Hugging Face module; see this file's docstring. Adapters are
    merged into matrices of their own in a small model in float32."""

    def __init__(self, model: Any, slots: int, context: int) -> None:
        c = model.config
        self.slots, self.context, self.block = slots, context, BLOCK_SLOTS
        self.vocab, self.hidden = int(c.vocab_size), int(c.hidden_size)
        self.heads, self.kv = int(c.num_attention_heads), int(c.num_key_value_heads)
        self.size = int(getattr(c, "head_dim", None) or self.hidden // self.heads)
        source = matrices.LayerWeights(model, self.size)
        self._inverse = source.inverse
        self._depth = len(source.layers)
        self.shapes: Mapping[str, tuple[int, int]] = {
            name: (m.weight.shape[0], m.weight.shape[1]) for name, m in source.linear.items()
        }
        dtypes = {m.weight.dtype for m in source.linear.values()}
        small = sum(p.numel() for p in model.parameters()) <= SMALL
        kind = matrices.Merged if small and dtypes == {torch.float32} else matrices.LowRank
        with torch.inference_mode():
            self._matrices: matrices.Matrices = kind(source)
            self._norms = [self._norm_of_heads(layer.self_attn) for layer in source.layers]
            self._embedding = model.model.embed_tokens.weight.detach()
            angles = torch.outer(
                torch.arange(context).float(), model.model.rotary_emb.inv_freq.float()
            )
            self._rotation = torch.polar(torch.ones_like(angles), angles)[:, None]
            self._kept = next(iter(source.linear.values())).weight.dtype
            self._cache = self._new_cache(BLOCK)
            self._spread = torch.zeros(slots, self.heads * self.size)
            self._buffer = torch.zeros(0, self.heads * self.size)

    def add(self, adapter: Adapter) -> None:
        self._matrices.add(adapter)

    def remove(self, name: str) -> None:
        self._matrices.remove(name)

    def copy(self, source: int, target: int, length: int) -> None:
        self._cache[:, :, target, :, :length] = self._cache[:, :, source, :, :length]

    def forward(self, rows: Rows) -> Tensor:
        self._reserve(int((rows.starts + rows.counts).max()))
        layout = make_layout(rows, self._rotation, (self.slots, self.kv, self._cache.shape[-2]))
        ends = rows.first + rows.counts
        parts = [(int(rows.first[a]), int(ends[b - 1]), n) for n, a, b in groups(rows.adapters)]
        x = self._embedding.index_select(0, torch.from_numpy(rows.ids))
        for i in range(self._depth):
            x = self._layer(x, i, parts, layout)
        return self._matrices.logits(x.index_select(0, torch.from_numpy(ends - 1)))

    def _layer(self, x: Tensor, index: int, parts: matrices.Parts, layout: Layout) -> Tensor:
        heads, product = self.heads + self.kv, self._matrices.product
        qkv = product("qkv", index, x, parts).view(len(x), heads + self.kv, self.size)
        qk, norms = qkv[:, :heads], self._norms[index]
        if norms is None:
            qkv[:, : self.heads].mul_(self.size**-0.5)
        else:
            qk.mul_(self._inverse(qk))
            qk.mul_(norms)
        torch.view_as_complex(qkv.view(*qkv.shape[:2], -1, 2))[:, :heads].mul_(layout.rotation)
        cache = self._cache[index]
        new = qkv[:, self.heads :].reshape(-1, self.size)
        cache.view(-1, self.size).index_copy_(0, layout.lines, new.to(cache.dtype))
        h = self._attend(qkv[:, : self.heads], cache, layout)
        x = product("out", index, h, parts, x)
        gate, up = product("gate_up", index, x, parts).chunk(2, dim=1)
        h = functional.silu(gate).mul_(up)
        return product("down", index, h, parts, x)

    def _attend(self, q: Tensor, cache: Tensor, layout: Layout) -> Tensor:
        """Queries [tokens, H, D] -> [tokens, H * D]."""
        q = q.reshape(-1, self.heads * self.size).contiguous()
        d = layout.decode
        if d is not None and d.whole and not layout.extends:
            return self._attend_decode(q, cache, d)
        out = torch.empty_like(q)
        if d is not None:
            # Slots without a row keep an old query; their outputs are not read.
            spread = self._spread[: d.span]
            spread.index_copy_(0, d.slots, q.index_select(0, d.tokens))
            answer = self._attend_decode(spread, cache, d)
            out.index_copy_(0, d.tokens, answer.index_select(0, d.slots))
        for e in layout.extends:
            out.index_copy_(0, e.tokens, self._attend_extend(q, cache, e))
        return out

    def _attend_decode(self, q: Tensor, cache: Tensor, d: Decode) -> Tensor:
        """Queries in slot order [span, H * D]; keys and values are not copied."""
        if cache.dtype != torch.float32:
            heads = q.view(d.span, self.heads, 1, self.size)
            parts = [self._fused(heads[a:b], cache[:, a:b, :, :n], d.bias[a:b, None, :, :n])
                     for a, b, n in d.blocks]  # fmt: skip
            return torch.cat(parts).view(d.span, -1)
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
        if len(self._buffer) < rows * e.width:
            self._buffer = torch.zeros(rows * e.width, self.heads * self.size)
        padded = self._buffer[: rows * e.width]  # old values in it are never read
        padded.index_copy_(0, e.places, q.index_select(0, e.tokens))
        if cache.dtype != torch.float32:
            heads = padded.view(rows, e.width, self.heads, self.size).transpose(1, 2)
            both = cache[:, :, :, : e.keys].index_select(1, e.slots)
            out = self._fused(heads, both, e.bias[:, 0]).transpose(1, 2)
            return out.reshape(rows * e.width, -1).index_select(0, e.places)
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

    def _fused(self, q: Tensor, cache: Tensor, bias: Tensor) -> Tensor:
        """Queries [rows, H, tokens, D], keys and values [2, rows, Hkv, keys, D] and the bias
        [rows, 1, tokens, keys] -> [rows, H, tokens, D] in float32. The sums are in float32, what is
        multiplied is rounded as the cache is."""
        answer = functional.scaled_dot_product_attention(
            q.to(cache.dtype), cache[0], cache[1], bias.to(cache.dtype), scale=1.0, enable_gqa=True
        )
        return answer.float()

    def _new_cache(self, length: int) -> Tensor:
        """An empty cache [layers, 2 (keys, values), slots, Hkv, length, D]. It is read whole for
        every token, so its bytes are most of what decoding costs."""
        shape = (self._depth, 2, self.slots, self.kv, length, self.size)
        return torch.zeros(shape, dtype=self._kept)

    def _reserve(self, length: int) -> None:
        """Grows the cache to at least `length` tokens per slot."""
        have = self._cache.shape[-2]
        if length <= have:
            return
        cache = self._new_cache(grown(have, length, self.context))
        cache[..., :have, :] = self._cache
        self._cache = cache

    def _norm_of_heads(self, attention: Any) -> Tensor | None:
        """Norm weights of queries (scaled by 1/sqrt(D)) and keys [H + Hkv, D]; None without."""
        if not hasattr(attention, "q_norm"):
            return None
        order = matrices.pairs(self.size)
        q_norm = attention.q_norm.weight[order] * self.size**-0.5
        k_norm = attention.k_norm.weight[order]
        return torch.cat([q_norm.expand(self.heads, -1), k_norm.expand(self.kv, -1)])


def uniforms(seed: int, start: int, count: int) -> np.ndarray:
    """`count` numbers in [0, 1), float32 with 24 random bits, for the tokens of the turn whose
    first sampled token has position `start`."""
    philox = np.random.Philox(key=np.array([seed, start], dtype=np.uint64))
    return ((philox.random_raw(count) >> np.uint64(40)) * np.float32(2.0**-24)).astype(np.float32)


def sample(logits: Tensor, temperatures: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability: logits [rows, vocab] (overwritten), temperatures
    and draws [rows] -> ids [rows], natural logs [rows].

    Temperature 0 takes the most likely token and reports its log-probability at temperature 1."""
    greedy = temperatures <= 0
    some_greedy = bool(greedy.any())
    if some_greedy and bool(greedy.all()):  # as in evaluation: no draw is needed
        ids = logits.argmax(-1)
        return ids, torch.softmax(logits, -1).gather(-1, ids[:, None]).squeeze(-1).log()
    scale = torch.where(greedy, 1.0, temperatures) if some_greedy else temperatures
    if not bool((scale == 1.0).all()):
        logits.div_(scale[:, None])
    probabilities = torch.softmax(logits, -1)
    cumulative = probabilities.cumsum(-1)
    # Scaled by the cumulative sum's own end, so that the draw always falls inside it.
    target = draws[:, None] * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    ids.clamp_(max=logits.shape[-1] - 1)
    if some_greedy:
        ids = torch.where(greedy, logits.argmax(-1), ids)
    return ids, probabilities.gather(-1, ids[:, None]).squeeze(-1).log()
