"""A gate over frozen adapters: y = base(x) + sum_i w_i LoRA_i(x) in every layer, with one weight
for each adapter.

The gate is a linear layer on the base model's state of a prompt, followed by a softmax over the
adapters and the base model, as `policies.routing.classifier` applies it. The weights are rounded to
tenths, and their gradient passes the rounding as if it were not there (straight-through, Bengio et
al. 2013, arXiv 1308.3432), so the trainer computes the log-probabilities of exactly what was
sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trace_bench.core.protocols import State
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.policies.loading import DType, without_weights
from trace_bench.policies.routing.classifier import LOCK
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.regression import Layer, blend, rounded, softmax
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tree


class Gate:
    """`weights` [labels, hidden size] and `bias` [labels] in float64; `labels`: adapters' names and
    None for the base model, which is added, at zero, if it is missing. `otherwise`: the adapter
    that all others were trained on from, if there is one."""

    def __init__(self, description: Mapping[str, Any], others: float) -> None:
        layer = Layer(description)
        self.labels = list(layer.labels)
        weights, bias = torch.tensor(layer.weights), torch.tensor(layer.bias)
        if None not in self.labels:
            self.labels.append(None)
            weights = torch.cat([weights, torch.zeros_like(weights[:1])])
            bias = torch.cat([bias, torch.zeros_like(bias[:1])])
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

    def scores(self, state: State) -> Tensor:
        """A state [hidden size] -> [labels]."""
        features = torch.from_numpy(np.array(state, dtype=np.float64))
        return (self.weights[None] @ features[None, :, None])[0, :, 0] + self.bias

    def mix(self, state: State, applied: bool = True) -> Tensor:
        """The weights of the updates [adapters]. `applied`: rounded as they are applied."""
        scores = self.scores(state)
        gates = scores.softmax(-1)
        if applied:
            gates = gates + (torch.from_numpy(_rounded(scores)) - gates).detach()
        gates = gates[[i for i, name in enumerate(self.labels) if name is not None]]
        weights = gates + self.others * (1.0 - gates)
        if self.otherwise is None:
            return weights
        return torch.cat([weights, 1.0 - weights.sum(-1, keepdim=True)])

    def plays(self, state: State) -> str | None:
        """The name of what the gate applies, an adapter, a sum or the base model."""
        gates = _rounded(self.scores(state))
        choice = blend(self.labels, gates, self.others, self.otherwise)
        return choice.name if isinstance(choice, Mixture) else choice

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": "classifier",
            "labels": self.labels,
            "weights": self.weights.tolist(),
            "bias": self.bias.tolist(),
            "others": self.others,
            "soft": True,
            "lock": LOCK,
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
        every = without_weights(model).named_modules()
        linear = {n: m for n, m in every if isinstance(m, torch.nn.Linear)}
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
        """As `Learner.logprobs`, with the adapters' updates scaled by `weights` [adapters],
        which get the gradient. All of the tree is computed with these weights."""
        for layer in self.learner.layers.values():
            spread = weights.to(self.learner.device, layer.a.dtype)[self._owner]
            layer.scale = spread[:, None]
        return self.learner.logprobs(tree)
