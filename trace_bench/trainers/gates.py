"""A gate over frozen adapters: y = base(x) + sum_i w_i LoRA_i(x) in every layer, with one weight
per adapter for a whole conversation.

The gate is a linear layer on the base model's final hidden state at the end of the first prompt,
followed by a softmax over the adapters and the base model, as `policies.routing.classifier` plays
it. It is played in tenths: the weights are rounded, and their gradient passes the rounding as if it
were not there (straight-through, Bengio et al. 2013, arXiv 1308.3432), so the trainer computes the
log-probabilities of exactly what was played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trace_bench.core.protocols import State
from trace_bench.core.types import AdapterRef
from trace_bench.policies.engine.lora import read_adapter
from trace_bench.policies.routing.merge import STEPS
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tree


class Gate:
    """`weights` [labels, hidden size] and `bias` [labels] in float64; `labels`: adapters' names and
    None for the base model, which is added, at zero, if it is missing."""

    def __init__(self, description: Mapping[str, Any], others: float) -> None:
        self.labels: list[str | None] = list(description["labels"])
        weights = torch.tensor(description["weights"], dtype=torch.float64)
        bias = torch.tensor(description["bias"], dtype=torch.float64)
        if None not in self.labels:
            self.labels.append(None)
            weights = torch.cat([weights, weights.new_zeros(1, weights.shape[1])])
            bias = torch.cat([bias, bias.new_zeros(1)])
        self.weights, self.bias = weights.requires_grad_(), bias.requires_grad_()
        self.others = others

    def chances(self, state: State) -> Tensor:
        """The softmax [labels]."""
        features = torch.tensor(state, dtype=torch.float64)
        return (self.weights @ features + self.bias).softmax(0)

    def mix(self, state: State, played: bool = True) -> Tensor:
        """The weights of the adapters' updates [labels without the base model]. `played`: rounded
        as they are played."""
        gates = self.chances(state)
        if played:
            gates = gates + ((gates * STEPS).round() / STEPS - gates).detach()
        gates = gates[[i for i, name in enumerate(self.labels) if name is not None]]
        return gates + self.others * (1.0 - gates)

    def as_json(self) -> dict[str, Any]:
        """The router's description."""
        return {
            "kind": "classifier",
            "labels": self.labels,
            "weights": self.weights.detach().tolist(),
            "bias": self.bias.detach().tolist(),
            "others": self.others,
            "soft": True,
        }


class Gated:
    """A learner's model with several frozen adapters, whose updates are added with weights. The
    adapters' matrices are stacked in one LoRA layer; a weight scales its adapter's rows of A."""

    def __init__(self, model: str, adapters: Sequence[AdapterRef], device: str = "cpu") -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        linear = {n: m for n, m in empty.named_modules() if isinstance(m, torch.nn.Linear)}
        shapes = {n: (m.out_features, m.in_features) for n, m in linear.items()}
        read = [read_adapter(ref, shapes).weights for ref in adapters]
        ranks = [max(a.shape[0] for a, _ in weights.values()) for weights in read]
        kinds = {name.rpartition(".")[2] for weights in read for name in weights}
        self.learner = Learner(model, kinds, sum(ranks), sum(ranks), device)
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
        """As `Learner.logprobs`, with the adapters' updates scaled by `weights` [adapters], which
        get the gradient. All trajectories of the tree are played with these weights."""
        for layer in self.learner.layers.values():
            spread = weights.to(self.learner.device, layer.a.dtype)[self._owner]
            layer.scale = spread[:, None]
        return self.learner.logprobs(tree)
