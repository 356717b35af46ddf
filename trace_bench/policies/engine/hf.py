"""Any Hugging Face causal language model as a backend, through its own `forward`: a Cache object
stores each layer's new keys and values in slots and returns those of the current rows, with a
prepared mask. Rows with one new token form one call, rows with several another one, padded.
Adapters are added to the outputs of linear layers, for the rows that have one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from trace_bench.core.errors import UserError
from trace_bench.policies.engine.layout import Rows, groups, grown
from trace_bench.policies.engine.lora import Adapter


@dataclass
class _Now:
    """The current call, read by cache layers and hooks. Rows are padded to `width` tokens."""

    slots: Tensor
    positions: Tensor  # [rows, width]
    real: Tensor  # [rows, width], False where padded
    keys: int
    parts: list[tuple[str | None, int, int]]  # adapter, first row, end row


class HuggingFace:
    """Backend over a Hugging Face module, on its device and in its dtype. Raises UserError for a
    model with layers that do not attend to the whole context."""

    def __init__(self, model: Any, slots: int, context: int) -> None:
        text = model.config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(text, "use_sliding_window", False):
            raise UserError(
                f"the local policy runs models with full attention only; {text.model_type} has "
                f"{', '.join(sorted(kinds))}. Use the setting `policy=openai` for this model."
            )
        self._model, self._slots, self._context = model, slots, context
        self.vocab, self.block = int(text.vocab_size), slots
        linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        self.shapes: Mapping[str, tuple[int, int]] = {
            n: (m.out_features, m.in_features) for n, m in linear.items()
        }
        self._adapters: dict[str | None, Mapping[str, tuple[Tensor, Tensor]]] = {}
        self._now: _Now | None = None
        self._layers = [_SlotLayer(self, slots, context) for _ in range(text.num_hidden_layers)]
        self._cache = Cache(layers=list(self._layers))
        for name, module in linear.items():
            module.register_forward_hook(self._hook(name))

    @property
    def now(self) -> _Now:
        assert self._now is not None
        return self._now

    def add(self, adapter: Adapter) -> None:
        at, kind = self._model.device, self._model.dtype
        self._adapters[adapter.name] = {
            name: (a.t().to(at, kind), b.t().to(at, kind))
            for name, (a, b) in adapter.weights.items()
        }

    def remove(self, name: str) -> None:
        del self._adapters[name]

    def copy(self, source: int, target: int, length: int) -> None:
        for layer in self._layers:
            layer.copy(source, target, length)

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Tensor:
        out = torch.empty(len(rows.slots), self.vocab)
        single = rows.counts == 1
        for chosen in (np.flatnonzero(single), np.flatnonzero(~single)):
            if len(chosen):
                try:
                    out[torch.from_numpy(chosen)] = self._call(rows, chosen).float().cpu()
                finally:
                    self._now = None  # the next caller of the model may use no adapter
        return out

    def _call(self, rows: Rows, chosen: np.ndarray) -> Tensor:
        """Logits [chosen, vocab] of the last tokens of some rows."""
        counts, starts = rows.counts[chosen], rows.starts[chosen]
        first = rows.first[chosen]
        width, keys = int(counts.max()), int((starts + counts).max())
        steps = np.arange(width)
        inside = steps < counts[:, None]
        ids = np.where(inside, rows.ids[np.where(inside, first[:, None] + steps, 0)], 0)
        positions = np.where(inside, starts[:, None] + steps, starts[:, None])
        at = self._model.device
        allowed = torch.from_numpy(np.arange(keys) <= positions[:, :, None])[:, None].to(at)
        mask = torch.zeros(allowed.shape, dtype=self._model.dtype, device=at)
        mask.masked_fill_(~allowed, torch.finfo(mask.dtype).min)
        names = [rows.adapters[i] for i in chosen.tolist()]
        self._now = _Now(
            torch.from_numpy(rows.slots[chosen]).to(at),
            torch.from_numpy(positions).to(at),
            torch.from_numpy(inside).to(at),
            keys,
            [g for g in groups(names) if g[0] is not None],
        )
        last = torch.from_numpy(counts - 1).to(at)
        kept, place = last.unique(return_inverse=True)
        logits: Tensor = self._model(
            input_ids=torch.from_numpy(ids).to(at),
            position_ids=self._now.positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=kept,
        ).logits
        return logits[torch.arange(len(last), device=at), place]

    def _hook(self, name: str) -> Any:
        """A hook that adds x A^T B^T to the output, for the rows of each adapter of this layer."""

        def hook(_module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if self._now is None:
                return output
            for adapter, first, end in self._now.parts:
                pair = self._adapters[adapter].get(name)
                if pair is not None:
                    output[first:end] += inputs[0][first:end] @ pair[0] @ pair[1]
            return output

        return hook


class _SlotLayer(CacheLayerMixin):
    """One layer's keys and values [slots, heads, length, D], grown as needed."""

    def __init__(self, owner: HuggingFace, slots: int, context: int) -> None:
        super().__init__()
        self._owner, self._slots, self._context = owner, slots, context

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._allocate(key_states, 0), self._allocate(value_states, 0)
        self.is_initialized = True

    def _allocate(self, like: Tensor, length: int) -> Tensor:
        return like.new_zeros(self._slots, like.shape[1], length, like.shape[3])

    def _reserve(self, length: int) -> None:
        assert self.keys is not None and self.values is not None
        have = self.keys.shape[2]
        if length <= have:
            return
        size = grown(have, length, self._context)
        for name, old in (("keys", self.keys), ("values", self.values)):
            new = self._allocate(old, size)
            new[:, :, :have] = old
            setattr(self, name, new)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores [rows, heads, width, D]; returns the rows' cache [rows, heads, keys, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        now = self._owner.now
        self._reserve(now.keys)
        assert self.keys is not None and self.values is not None
        slots = now.slots[:, None].expand_as(now.positions)[now.real]
        positions = now.positions[now.real]
        self.keys[slots, :, positions] = key_states.transpose(1, 2)[now.real]
        self.values[slots, :, positions] = value_states.transpose(1, 2)[now.real]
        return self.keys[now.slots, :, : now.keys], self.values[now.slots, :, : now.keys]

    def copy(self, source: int, target: int, length: int) -> None:
        assert self.keys is not None and self.values is not None
        for held in (self.keys, self.values):
            held[target, :, :length] = held[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._owner.now.keys, 0

    def get_seq_length(self) -> int:
        return self._owner.now.keys

    def get_max_length(self) -> int:
        return self._context

    get_max_cache_shape = get_max_length  # its name up to transformers 5.12
