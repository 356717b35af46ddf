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
from trace_bench.policies.loading import without_weights
from trace_bench.policies.routing.classifier import Layer, rounded, softmax
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tree


class GateLayer:
    """The layer of a soft router, from its JSON, with parameters: `weights` [labels, hidden size]
    and `bias` [labels] in float64. The base model is added, at zero, if it is missing."""

    def __init__(self, router: Mapping[str, Any]) -> None:
        layer = Layer(router)
        self._router = router
        self.labels, self.others, self.otherwise = layer.labels, layer.others, layer.otherwise
        weights, bias = torch.tensor(layer.weights), torch.tensor(layer.bias)
        if None not in self.labels:
            self.labels.append(None)
            weights = torch.cat([weights, torch.zeros_like(weights[:1])])
            bias = torch.cat([bias, torch.zeros_like(bias[:1])])
        self.weights, self.bias = weights.requires_grad_(), bias.requires_grad_()
        self.parameters = [self.weights, self.bias]

    @property
    def adapters(self) -> list[str]:
        """Those that `mix` has weights for, in its order."""
        names = [name for name in self.labels if name is not None]
        return names if self.otherwise is None else [*names, self.otherwise]

    def mix(self, state: State) -> Tensor:
        """The weights of the updates [adapters] after a prompt's state [hidden size]."""
        scores = self.weights @ torch.from_numpy(np.array(state, dtype=np.float64)) + self.bias
        gates = scores.softmax(-1)
        applied = torch.from_numpy(rounded(softmax(scores.detach().numpy())))
        gates = gates + (applied - gates).detach()
        gates = gates[[i for i, name in enumerate(self.labels) if name is not None]]
        weights = gates + self.others * (1.0 - gates)
        if self.otherwise is None:
            return weights
        return torch.cat([weights, 1.0 - weights.sum(-1, keepdim=True)])

    def as_json(self) -> dict[str, Any]:
        weights, bias = self.weights.tolist(), self.bias.tolist()
        return {**self._router, "labels": list(self.labels), "weights": weights, "bias": bias}


class Gated:
    """The base model of `like` with several frozen adapters, whose updates are added with weights.
    They are stacked in one LoRA layer; a weight scales its adapter's rows of A."""

    def __init__(self, model: str, adapters: Sequence[AdapterRef], like: Learner) -> None:
        every = without_weights(model).named_modules()
        linear = {n: m for n, m in every if isinstance(m, torch.nn.Linear)}
        shapes = {n: (m.out_features, m.in_features) for n, m in linear.items()}
        read = [read_adapter(ref, shapes).weights for ref in adapters]
        ranks = [max(a.shape[0] for a, _ in weights.values()) for weights in read]
        kinds = {name.rpartition(".")[2] for weights in read for name in weights}
        where = (str(like.device), like.dtype, like.memory)
        self.learner = Learner(model, kinds, sum(ranks), sum(ranks), *where)
        owner = torch.arange(len(ranks)).repeat_interleave(torch.tensor(ranks))
        self._owner = owner.to(self.learner.device)
        starts = np.cumsum([0, *ranks])[:-1]
        with torch.no_grad():
            for start, weights in zip(starts, read, strict=True):
                for name, (a, b) in weights.items():
                    layer = self.learner.layers[name]
                    layer.a[start : start + len(a)] = a
                    layer.b[:, start : start + len(a)] = b
        for parameter in self.learner.parameters:
            parameter.requires_grad_(False)

    def logprobs(self, tree: Tree, weights: Tensor) -> Tensor:
        """As `Learner.logprobs`, with the adapters' updates scaled by `weights` [adapters],
        which get the gradient. All of the tree is computed with these weights."""
        for layer in self.learner.layers.values():
            layer.scale = weights.to(layer.a)[self._owner, None]
        return self.learner.logprobs(tree)
