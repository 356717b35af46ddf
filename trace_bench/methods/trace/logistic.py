"""Multinomial logistic regression, the classifier behind TRACE's learned routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 200  # of LBFGS at most; it converges in some 50


@dataclass(frozen=True)
class Fitted:
    """`weights` [classes, features] and `bias` [classes], for features as they are given;
    `right`: the share of the examples whose class has the highest score."""

    weights: Tensor
    bias: Tensor
    right: float

    def as_json(self) -> dict[str, Any]:
        """Exact: a float's text is read back as the same number."""
        return {"weights": self.weights.tolist(), "bias": self.bias.tolist()}


def fit(
    features: Sequence[Sequence[float]],
    classes: Sequence[int],
    l2: float = 1e-3,
    weigh: Sequence[float] | None = None,
    standardize: bool = True,
) -> Fitted:
    """Minimizes the mean cross-entropy plus l2/2 times the squared weights, with LBFGS in float64
    from zero, on standardized features (unless `standardize` is false); the standardization is
    folded into what is returned. `weigh`: the examples' weights (None: equal). All classes count
    the same, however many examples they have: an example weighs its part of its class. `classes`
    are 0, 1, ... without gaps."""
    import numpy as np
    import torch

    x = torch.from_numpy(np.array(features, dtype=np.float64))
    y = torch.tensor(classes)
    each = torch.ones(len(y), dtype=torch.float64)
    if weigh is not None:
        each = torch.tensor(weigh, dtype=torch.float64)
    count = int(y.max()) + 1
    of_class = torch.zeros(count, dtype=torch.float64).index_add_(0, y, each)
    each = each / of_class[y] / count
    mean, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where((scale > 1e-12) & standardize, scale, torch.ones_like(scale))
    z = (x - mean) / scale
    w = torch.zeros(count, x.shape[1], dtype=torch.float64, requires_grad=True)
    b = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    steps = torch.optim.LBFGS([w, b], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> float:
        steps.zero_grad()
        apart = torch.nn.functional.cross_entropy(z @ w.t() + b, y, reduction="none")
        total = (each * apart).sum() + l2 / 2 * w.square().sum()
        torch.autograd.backward(total)
        return float(total.detach())

    steps.step(loss)
    with torch.no_grad():
        right = float(((z @ w.t() + b).argmax(1) == y).double().mean())
        weights = w / scale
        return Fitted(weights.detach(), (b - weights @ mean).detach(), right)
