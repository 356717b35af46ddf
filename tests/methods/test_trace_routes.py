"""The routes of TRACE that learn: what they learn from, and that it costs what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from named import method
from trace_lab import BASE, THREE, MemoryLab

from trace_bench.core.types import AdapterRef, AgentSpec, Purpose
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.classifier import ClassifierRouter, blend, fit
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.router import make_router
from trace_bench.tiny import MODEL_FOLDER


@pytest.fixture(scope="module")
def policy() -> Any:
    acting = LocalPolicy(str(MODEL_FOLDER), batch=4)
    yield acting
    acting.close()


def fitted(
    policy: LocalPolicy, budget: int, base: AgentSpec = BASE, **settings: Any
) -> tuple[AgentSpec, MemoryLab]:
    lab = MemoryLab(THREE, budget, seed=7)
    lab.policy = policy
    small = {"synthetic_tasks": 32, **settings}
    tasks = lab.suite.tasks("train")
    return method("trace", **small).fit(base, tasks, lab), lab


@pytest.fixture(scope="module")
def classified(policy: LocalPolicy) -> tuple[AgentSpec, MemoryLab]:
    return fitted(policy, 1280, route="classifier")


def test_logistic_regression_finds_the_regularized_minimum() -> None:
    """At the minimum the gradient of the loss, taken by autograd elsewhere, is zero; both classes
    count the same although one has five times the examples."""
    torch.manual_seed(0)
    x = torch.randn(60, 5, dtype=torch.float64) * torch.tensor([1.0, 10.0, 0.1, 1.0, 0.0]) + 3.0
    y = torch.tensor([0] * 50 + [1] * 10)
    x[y == 1, 0] += 1.0
    found = fit(x.tolist(), y.tolist(), l2=1e-2)
    scale = x.std(0, correction=0)
    scale[4] = 1.0
    w = (found.weights * scale).requires_grad_()
    b = (found.bias + found.weights @ x.mean(0)).requires_grad_()
    each = torch.where(y == 0, 0.5 / 50, 0.5 / 10)
    apart = torch.nn.functional.cross_entropy(
        (x - x.mean(0)) / scale @ w.t() + b, y, reduction="none"
    )
    loss = (each * apart).sum() + 1e-2 / 2 * w.square().sum()
    grads = torch.autograd.grad(loss, (w, b))
    assert max(float(g.abs().max()) for g in grads) < 1e-5
    right = (x @ found.weights.t() + found.bias).argmax(1) == y
    assert found.right == pytest.approx(float(right.double().mean()))


def test_the_classifier_learns_from_synthetic_openings_alone(classified: Any, policy: Any) -> None:
    agent, lab = classified
    spent = lab.spent()
    assert sum(spent.values()) == 1280 and lab.left == 0
    assert set(spent) == {Purpose.ANALYSIS, Purpose.CALIBRATION, Purpose.TRAINING}
    summed = fitted(policy, 1280, route="linear")[1]
    assert summed.calls == lab.calls, "the route costs no rollout"
    assert agent.router is not None and agent.router["kind"] == "classifier"
    assert agent.router["labels"] == [*(a.name for a in agent.adapters), None]
    assert any("openings go where they came from" in text for text in lab.logged)


def test_the_classifier_sends_new_tasks_to_their_adapter(classified: Any, policy: Any) -> None:
    agent, lab = classified
    router = make_router(agent, policy)
    assert isinstance(router, ClassifierRouter) and router.layer.others == 0.35
    of = {a.name: a.capability for a in agent.adapters}
    hits: Counter[bool] = Counter()
    for task in lab.suite.tasks("dev"):
        needs = set(task.data["requires"])
        if len(needs) == 1 and needs <= set(THREE):
            step = lab.suite.make().reset(task)
            choice = router.route(step.messages, step.tools)
            hits[{of.get(str(whole(choice)))} == needs] += 1
    assert hits[True] > 2 * hits[False], hits


def whole(choice: Any) -> str | None:
    """The adapter that counts whole in a sum; None: none of them."""
    assert isinstance(choice, Mixture)
    return next((name for name, weight in choice.parts if weight == 1.0), None)


BEGUN = replace(BASE, adapters=(AdapterRef("sft@0001", "somewhere"),))


@pytest.mark.parametrize("route", ["classifier", "soft", "linear"])
def test_the_adapter_that_all_began_with_counts_once(policy: LocalPolicy, route: str) -> None:
    agent, lab = fitted(policy, 640, base=BEGUN, route=route, synthetic_tasks=16)
    assert agent.adapters[0].name == "sft@0001" and len(agent.adapters) > 2
    router = make_router(agent, policy)
    for task in lab.suite.tasks("dev")[:16]:
        step = lab.suite.make().reset(task)
        choice = router.route(step.messages, step.tools)
        assert isinstance(choice, Mixture) and "sft@0001" in dict(choice.parts)
        assert np.sum([weight for _, weight in choice.parts]) == pytest.approx(1.0)


def test_where_no_adapter_counts_the_one_of_the_beginning_plays() -> None:
    labels = ["a", "b", None]
    none, first = np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0])
    assert blend(labels, none, 0.0, "own") == "own" and blend(labels, none, 0.0) is None
    assert blend(labels, first, 0.0, "own") == "a"
    chosen = blend(labels, first, 0.5, "own")  # own + (a - own) + (b - own) / 2
    assert chosen == Mixture((("a", 1.0), ("b", 0.5), ("own", -0.5)))
    assert blend([None], np.array([1.0]), 0.35, "own") == "own"
