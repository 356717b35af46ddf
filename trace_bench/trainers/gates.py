"""A gate over frozen adapters: y = base(x) + sum_i w_i LoRA_i(x) in every layer, with one weight
for each adapter, or one for each adapter in each transformer block.

The gate is a linear layer on the base model's state of a prompt, or one for each block on that
block's mean input, followed by a softmax over the adapters and the base model, as
`policies.routing.classifier` applies it. The weights are rounded to tenths, and their gradient
passes the rounding as if it were not there (straight-through, Bengio et al. 2013, arXiv
1308.3432), so the trainer computes the log-probabilities of exactly what was sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trace_bench.core.protocols import State
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import block_of, read_adapter
from trace_bench.policies.precision import DType
from trace_bench.policies.routing.classifier import LOCKS, Linear, blend, rounded, softmax
from trace_bench.policies.routing.merge import Mixture
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tree


class Gate:
    """`weights` [1 or blocks, labels, hidden size] and `bias` [1 or blocks, labels] in float64;
    `labels`: adapters' names and None for the base model, which is added, at zero, if it is
    missing. `blocks`: whether each block has weights of its own. `otherwise`: the adapter that all
    others were trained on from, if there is one."""

    def __init__(self, description: Mapping[str, Any], others: float) -> None:
        linear = Linear(description)
        self.labels, self.blocks = list(linear.labels), linear.blocks
        self.lock = str(description.get("lock", LOCKS[0]))
        weights, bias = torch.tensor(linear.weights), torch.tensor(linear.bias)
        if None not in self.labels:
            self.labels.append(None)
            weights = torch.cat([weights, torch.zeros_like(weights[:, :1])], 1)
            bias = torch.cat([bias, torch.zeros_like(bias[:, :1])], 1)
        self.weights, self.bias = weights.requires_grad_(), bias.requires_grad_()
        self.others = others
        self.otherwise: str | None = description.get("otherwise")

    @property
    def adapters(self) -> list[str]:
        """Those that `mix` has weights for, in its order."""
        names = [name for name in self.labels if name is not None]
        return names if self.otherwise is None else [*names, self.otherwise]

    @property
    def parameters(self) -> list[Tensor]:
        return [self.weights, self.bias]

    def scores(self, states: Sequence[State]) -> Tensor:
        """States [1 or blocks, hidden size] -> [1 or blocks, labels]."""
        features = torch.from_numpy(np.array(states, dtype=np.float64))
        return (self.weights @ features[:, :, None])[:, :, 0] + self.bias

    def mix(self, states: Sequence[State], applied: bool = True) -> Tensor:
        """The weights of the adapters' updates [1 or blocks, adapters]. `applied`: rounded as they
        are applied."""
        scores = self.scores(states)
        gates = scores.softmax(-1)
        if applied:
            gates = gates + (torch.from_numpy(_rounded(scores)) - gates).detach()
        gates = gates[:, [i for i, name in enumerate(self.labels) if name is not None]]
        weights = gates + self.others * (1.0 - gates)
        if self.otherwise is None:
            return weights
        return torch.cat([weights, 1.0 - weights.sum(-1, keepdim=True)], -1)

    def plays(self, states: Sequence[State]) -> str | None:
        """The name of what the gate applies, an adapter, a sum or the base model."""
        gates = _rounded(self.scores(states))
        choice = blend(self.labels, gates, self.others, self.otherwise)
        return choice.name if isinstance(choice, Mixture) else choice

    def as_json(self) -> dict[str, Any]:
        """The router's description."""
        weights, bias = (p.detach() if self.blocks else p.detach()[0] for p in self.parameters)
        return {
            "kind": "classifier",
            "labels": self.labels,
            "weights": weights.tolist(),
            "bias": bias.tolist(),
            "others": self.others,
            "soft": True,
            "lock": self.lock,
            **({} if self.otherwise is None else {"otherwise": self.otherwise}),
        }


def _rounded(scores: Tensor) -> np.ndarray:
    return rounded(softmax(scores.detach().numpy()))


class Gated:
    """A learner's model with several frozen adapters, whose updates are added with weights. The
    adapters' matrices are stacked in one LoRA layer; a weight scales its adapter's rows of A.
    `device`, `dtype`, `memory`: as the learner's."""

    def __init__(
        self,
        model: str,
        adapters: Sequence[AdapterRef],
        device: str = "cpu",
        dtype: DType = "float32",
        memory: float = 4e9,
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        linear = {n: m for n, m in empty.named_modules() if isinstance(m, torch.nn.Linear)}
        shapes = {n: (m.out_features, m.in_features) for n, m in linear.items()}
        read = [read_adapter(ref, shapes).weights for ref in adapters]
        ranks = [max(a.shape[0] for a, _ in weights.values()) for weights in read]
        kinds = {name.rpartition(".")[2] for weights in read for name in weights}
        self.learner = Learner(model, kinds, sum(ranks), sum(ranks), device, dtype, memory)
        owner = [i for i, rank in enumerate(ranks) for _ in range(rank)]
        self._owner = torch.tensor(owner, device=self.learner.device)
        starts = [sum(ranks[:i]) for i in range(len(ranks))]
        with torch.no_grad():
            for name, layer in self.learner.layers.items():
                for start, weights in zip(starts, read, strict=True):
                    if name in weights:
                        a, b = weights[name]
                        layer.a[start : start + len(a)] = a
                        layer.b[:, start : start + len(a)] = b
        for parameter in self.learner.parameters:
            parameter.requires_grad_(False)

    def logprobs(self, tree: Tree, weights: Tensor) -> Tensor:
        """As `Learner.logprobs`, with the adapters' updates scaled by `weights` [1 or blocks,
        adapters], which get the gradient. All of the tree is computed with these weights."""
        for name, layer in self.learner.layers.items():
            row = weights[0 if len(weights) == 1 else block_of(name)]
            spread = row.to(self.learner.device, layer.a.dtype)[self._owner]
            layer.scale = spread[:, None]
        return self.learner.logprobs(tree)
