"""The trainer's causal language model: log-probabilities of sampled tokens, with gradients for the
adapter only.

The model is the Hugging Face module itself, of any architecture; only attention is replaced
(through transformers' own registry), so that a batch is one flat row of distinct tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trace_bench.core.errors import UserError
from trace_bench.policies.local import load_model
from trace_bench.trainers.adapters import insert
from trace_bench.trainers.tree import Tree

ATTENTION = "trace_bench_tree"


@dataclass
class _Rows:
    queries: Tensor  # [rows * width]
    keys: Tensor  # [rows * length]
    allowed: Tensor  # [rows, 1, width, length]


@dataclass
class _Attention:
    """A tree's attention on the model's device; `calls` counts the layers that used it."""

    rows: list[_Rows]
    home: Tensor
    calls: int = 0


class Learner:
    """The base model at `path` with a LoRA adapter on the layers named in `targets`.

    Raises UserError for a model that cannot be loaded, for targets that match no layer, and for a
    model whose attention is not full causal attention."""

    def __init__(
        self, path: str, targets: Iterable[str], rank: int, alpha: float, device: str = "cpu"
    ) -> None:
        self.model, _ = load_model(path, device)
        self.device = torch.device(device)
        text = self.model.config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UserError(
                f"trainer=local trains models with full attention only; {text.model_type} has "
                f"{', '.join(sorted(kinds))}. Change the setting `model`."
            )
        self.depth = int(text.num_hidden_layers)
        self.context = int(text.max_position_embeddings)
        _register()
        self.model.set_attn_implementation(ATTENTION)
        self.layers = insert(self.model, targets, rank, alpha)
        self.parameters = [p for layer in self.layers.values() for p in (layer.a, layer.b)]

    def logprobs(self, tree: Tree) -> Tensor:
        """Natural log-probabilities [sampled tokens] at temperature 1, trajectories in order."""
        at = self.device
        attention = _Attention(
            [
                _Rows(
                    torch.from_numpy(r.queries.reshape(-1)).to(at),
                    torch.from_numpy(r.keys.reshape(-1)).to(at),
                    torch.from_numpy(r.allowed[:, None]).to(at),
                )
                for r in tree.rows
            ],
            torch.from_numpy(tree.home).to(at),
        )
        out = self.model(
            input_ids=torch.from_numpy(tree.ids)[None].to(at),
            position_ids=torch.from_numpy(tree.positions)[None].to(at),
            use_cache=False,
            logits_to_keep=torch.from_numpy(tree.nodes_at).to(at),
            tree=attention,
        )
        if attention.calls != self.depth:
            raise UserError(
                f"{self.model.config.model_type} does not take its attention from transformers' "
                "registry, so trainer=local cannot train it. Change the setting `model`."
            )
        logits = out.logits[0].float()
        line, token = torch.from_numpy(tree.line).to(at), torch.from_numpy(tree.token).to(at)
        chosen = logits[line, token] - logits.logsumexp(-1).index_select(0, line)
        return chosen.index_select(0, torch.from_numpy(tree.choice).to(at))


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attend)


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
    q: Tensor, kv: Tensor, rows: _Rows, heads: int, size: int, scaling: float | None
) -> Tensor:
    """Flat queries [nodes, H D], keys with values [nodes, 2 Hkv D] -> [rows * width, H D].

    Rows are gathered by `embedding`, since its backward pass sums in a fixed order."""
    n = rows.allowed.shape[0]
    queries = functional.embedding(rows.queries, q).view(n, -1, heads, size).transpose(1, 2)
    both = functional.embedding(rows.keys, kv).view(n, rows.allowed.shape[3], -1, size)
    k, v = both.transpose(1, 2).chunk(2, dim=1)
    out = functional.scaled_dot_product_attention(
        queries, k, v, attn_mask=rows.allowed, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).reshape(-1, heads * size)
