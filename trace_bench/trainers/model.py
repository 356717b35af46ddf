"""The trainer's causal language model: log-probabilities of sampled tokens, with gradients for the
adapter only.

The model is the Hugging Face module itself, of any architecture; only attention is replaced
(through transformers' own registry), so that a batch is one flat row of distinct tokens.

Memory: attention keeps nothing that grows with the square of the tokens but one mask for all
layers, where there is one (`tree.TreeRows`). What layers keep for the backward pass grows with the
tokens; it is measured once, so that batches can be divided (`parts`). A single sequence that needs
more than there is has its layers computed again in the backward pass.

A killed training goes on from a saved state (`State`): one file, replaced atomically.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from trace_bench.core.errors import UserError
from trace_bench.core.store import write_bytes
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import read_weights
from trace_bench.policies.loading import DType, load_model
from trace_bench.trainers.adapters import begin_with, insert, restart
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.job import other_job
from trace_bench.trainers.tree import MemoryBudget, Tokens, Tree, build

ATTENTION = "trace_bench_tree"


@dataclass
class _TorchRows:
    queries: Tensor  # [rows * width]
    keys: Tensor  # [rows * length]
    count: int
    bias: Tensor | None  # [rows, 1, width, length], 0 or -inf; None: causal


@dataclass
class _Attention:
    """A tree's attention on the model's device; `calls` counts the layers that used it."""

    rows: list[_TorchRows]
    home: Tensor
    calls: int = 0


class Learner:
    """The base model at `path` with a LoRA adapter on the layers named in `targets`. `dtype`: the
    numbers of its products. `memory`: bytes for what a forward pass keeps for the backward pass.
    Raises UserError for a model that cannot be loaded or has other than full causal attention, and
    for targets that match no layer."""

    def __init__(
        self,
        path: str,
        targets: Iterable[str],
        rank: int,
        alpha: float,
        device: str = "cpu",
        dtype: DType = "float32",
        memory: float = 4e9,
    ) -> None:
        self.model, _ = load_model(path, device, dtype)
        self.dtype, self.memory = dtype, memory
        weights = (m.weight for m in self.model.modules() if isinstance(m, nn.Linear))
        self.rounded = any(w.dtype != torch.float32 for w in weights)  # products in bfloat16
        self.device = torch.device(device)
        text = self.model.config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UserError(
                f"trainer=local trains models with full attention only; {text.model_type} has "
                f"{', '.join(sorted(kinds))}. Change the setting `model`."
            )
        self.depth, self.vocab = int(text.num_hidden_layers), int(text.vocab_size)
        self.context = int(text.max_position_embeddings)
        AttentionInterface.register(ATTENTION, _attend)
        self.model.set_attn_implementation(ATTENTION)
        self.layers = insert(self.model, targets, rank, alpha)
        self.parameters = [p for layer in self.layers.values() for p in (layer.a, layer.b)]

    @cached_property
    def memory_budget(self) -> MemoryBudget:
        """The memory for a pass over a batch, and what a token needs of it."""
        few, more = self._kept(64), self._kept(192)
        return MemoryBudget(self.memory, (more - few) / 128, 3 * 4 * self.vocab)

    def logprobs(self, tree: Tree) -> Tensor:
        """Natural log-probabilities [sampled tokens] at temperature 1, trajectories in order."""
        fits = self.memory_budget.holds(len(tree.ids), len(tree.nodes_at))
        with _again(self.model, not fits):
            return self._logprobs(tree)

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Within it, the model is the base model."""
        scales = {name: layer.scale for name, layer in self.layers.items()}
        for layer in self.layers.values():
            layer.scale = 0.0
        try:
            yield
        finally:
            for name, scale in scales.items():
                self.layers[name].scale = scale

    def _kept(self, length: int) -> float:
        """Bytes that a pass over one sequence keeps for the backward pass, without parameters."""
        ids = np.arange(length + 1) % self.vocab
        sequence = Tokens(ids, np.array([length]), np.zeros(1, np.float32))
        weights = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        kept: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            storage = value.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return value

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
        with torch.enable_grad(), hooks:  # the first batch may be read without a gradient
            held = self._logprobs(build([sequence]))  # as long as it lives, so do all storages
        del held
        return float(sum(kept.values()))

    def _logprobs(self, tree: Tree) -> Tensor:
        def there(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(self.device)

        rows = []
        for r in tree.rows:
            bias = None  # what is added to the scores, once for all layers
            if r.allowed is not None:
                bias = torch.where(there(r.allowed), 0.0, float("-inf"))[:, None]
            queries, keys = there(r.queries.reshape(-1)), there(r.keys.reshape(-1))
            rows.append(_TorchRows(queries, keys, len(r.keys), bias))
        attention = _Attention(rows, there(tree.home))
        out = self.model(
            input_ids=there(tree.ids)[None],
            position_ids=there(tree.positions)[None],
            use_cache=False,
            logits_to_keep=there(tree.nodes_at),
            tree=attention,
        )
        if attention.calls != self.depth:
            raise UserError(
                f"{self.model.config.model_type} does not take its attention from transformers' "
                "registry, so trainer=local cannot train it. Change the setting `model`."
            )
        logits = out.logits[0].float()
        line = there(tree.line)
        chosen = logits[line, there(tree.token)] - logits.logsumexp(-1).index_select(0, line)
        return chosen.index_select(0, there(tree.choice))


@contextmanager
def _again(model: Any, wanted: bool) -> Iterator[None]:
    """Within it, layers keep only their input, if `wanted`. Raises UserError for a model that
    cannot compute its layers again."""
    if not wanted:
        yield
        return
    if not model.supports_gradient_checkpointing:
        raise UserError(
            f"a sequence needs more than trainer.memory, and {model.config.model_type} cannot "
            "compute its layers again. Raise `trainer.memory`, or lower `policy.context`."
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True  # the flag of the layer itself; what is in it stays as it is
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.gradient_checkpointing_disable()


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, H, nodes, D], key and value [1, Hkv, nodes, D] -> [1, nodes, H, D]."""
    tree: _Attention = kwargs["tree"]
    tree.calls += 1
    heads, size = query.shape[1], query.shape[3]
    q = query[0].transpose(0, 1).reshape(-1, heads * size)
    kv = torch.cat([key[0], value[0]]).transpose(0, 1).reshape(query.shape[2], -1)
    answers = [_attend_rows(q, kv, r, heads, size, scaling) for r in tree.rows]
    flat = answers[0] if len(answers) == 1 else torch.cat(answers)
    return functional.embedding(tree.home, flat).view(1, -1, heads, size), None


def _attend_rows(
    q: Tensor, kv: Tensor, rows: _TorchRows, heads: int, size: int, scaling: float | None
) -> Tensor:
    """Flat queries [nodes, H D], keys with values [nodes, 2 Hkv D] -> [rows * width, H D].

    Rows are gathered by `embedding`, since its backward pass sums in a fixed order."""
    n = rows.count
    queries = functional.embedding(rows.queries, q).view(n, -1, heads, size).transpose(1, 2)
    both = functional.embedding(rows.keys, kv).view(n, len(rows.keys) // n, -1, size)
    k, v = both.transpose(1, 2).chunk(2, dim=1)
    # With a bias of another dtype, torch's product on CPU is wrong without an error.
    bias = None if rows.bias is None else rows.bias.to(q.dtype)
    out = functional.scaled_dot_product_attention(
        queries, k, v, bias, is_causal=bias is None, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).reshape(-1, heads * size)


FILE = "state.pt"
_AGAIN = "the training is repeated from the stored rollouts"


@dataclass
class State:
    """The state after the iterations with these `records`. `data`: the hash of what a fine-tuning
    learns from, "" in other trainings. `weights`, `optimizer`: if read from disk."""

    identity: str
    finished: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)
    data: str = ""
    weights: list[torch.Tensor] | None = None
    optimizer: dict[str, Any] | None = None

    @classmethod
    def load(cls, folder: Path, identity: str, log: Callable[[str], None]) -> State:
        """The state in the folder, or a new one. Where the state or its adapter is damaged, the
        training is repeated, which is logged: its rollouts are stored, so none is spent and the
        result is the same. Raises UserError for another job's state."""
        path = folder / FILE
        if not path.exists():
            return cls(identity)
        try:
            state = cls(**torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch documents no errors for a damaged file
            log(f"{path} cannot be read ({type(error).__name__}): {_AGAIN}")
            return cls(identity)
        if state.identity != identity:
            raise other_job(path)
        adapter = folder / f"{len(state.records):04d}"
        if state.finished or adapter.exists():
            try:
                read_weights(AdapterRef(adapter.name, str(adapter)))
            except UserError as error:
                log(f"{error.__cause__ or error}, in {adapter}: {_AGAIN}")
                return cls(identity)
        return state

    def save(self, folder: Path, learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        """Replaces the file. A finished job keeps only its metrics; its adapter is stored apart."""
        fields = {**vars(self), "weights": None, "optimizer": None}
        if not self.finished:
            fields["weights"] = [p.detach().cpu() for p in learner.parameters]
            fields["optimizer"] = optimizer.state_dict()
        buffer = io.BytesIO()
        torch.save(fields, buffer)
        write_bytes(folder / FILE, buffer.getvalue())


def restore(
    state: State, learner: Learner, settings: Recipe, seed: int, start: AdapterRef | None = None
) -> torch.optim.Optimizer:
    """Loads the state into adapter and optimizer, or begins them: as `start`, if there is one."""
    optimizer = torch.optim.AdamW(learner.parameters, lr=settings.learning_rate, weight_decay=0.0)
    if state.weights is None or state.optimizer is None:
        restart(learner.layers, seed)
        if start is not None:
            begin_with(learner.layers, start, settings)
        return optimizer
    with torch.no_grad():
        for parameter, stored in zip(learner.parameters, state.weights, strict=True):
            parameter.copy_(stored)
    optimizer.load_state_dict(state.optimizer)
    return optimizer
