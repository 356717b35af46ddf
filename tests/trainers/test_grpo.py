"""Advantages and loss against numbers worked out by hand, and their properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trace_bench.trainers.algorithms import Algorithm, Loss, policy_loss
from trace_bench.trainers.grpo import Batch, group_advantages, mismatch, token_weights

NAN = float("nan")


def advantages(rewards: list[float], group: list[int]):
    return group_advantages(torch.tensor(rewards), torch.tensor(group))


def test_advantages_by_hand() -> None:
    # Group 0: mean 0.5, deviation (n - 1) sqrt((4 * 0.25) / 3) = 0.57735; group 1 has 0, 0.5, 1:
    # mean 0.5, deviation 0.5.
    found = advantages([0, 0, 1, 1, 0, 0.5, 1], [0, 0, 0, 0, 1, 1, 1])
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    b = 0.5 / (0.5 + 1e-6)
    assert found.values.tolist() == pytest.approx([-a, -a, a, a, -b, 0, b], abs=1e-6)
    assert found.trained.all()
    assert (found.groups, found.constant, found.failed) == (2, 0, 0)


def test_how_far_sampler_and_trainer_are_apart_by_hand() -> None:
    found = mismatch(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.5]))
    assert found is not None
    assert (found.mean, found.max) == (0.25, 0.5)
    assert found.kl == pytest.approx((math.exp(0.5) - 1 - 0.5) / 2)
    assert mismatch(torch.tensor([]), torch.tensor([])) is None
    far = mismatch(torch.tensor([-200.0]), torch.tensor([-0.5]))
    assert far is not None and math.isfinite(far.kl)


def test_constant_groups_are_dropped_and_counted() -> None:
    rewards = [0, 0, 1, 1, 0.4, 0.4, 0, 1, NAN, NAN]
    found = advantages(rewards, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    assert found.trained.tolist() == [False] * 6 + [True] * 2 + [False] * 2
    assert found.values[:6].abs().sum() == 0
    assert (found.groups, found.constant, found.all_zero, found.all_one) == (5, 4, 1, 1)


def test_a_failed_episode_leaves_the_baseline() -> None:
    found = advantages([0, NAN, 1, NAN, 1, NAN], [0, 0, 0, 1, 1, 1])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)  # mean and deviation of 0 and 1 alone
    assert found.values.tolist() == pytest.approx([-a, 0, a, 0, 0, 0], abs=1e-6)
    assert found.trained.tolist() == [True, False, True, False, False, False]
    assert (found.constant, found.failed) == (1, 3)  # one member is no baseline


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_advantages_sum_to_zero_and_do_not_depend_on_order(groups, shuffle) -> None:
    rewards = [r / 4 for g in groups for r in g]
    labels = [i for i, g in enumerate(groups) for _ in g]
    found = advantages(rewards, labels)
    for label, group in enumerate(groups):
        values = found.values[[i for i, at in enumerate(labels) if at == label]]
        assert float(values.sum()) == pytest.approx(0, abs=1e-5)
        if len(set(group)) > 1:  # unit deviation, to the small constant
            assert float(values.std()) == pytest.approx(1, abs=1e-4)
    order = list(range(len(rewards)))
    shuffle.shuffle(order)
    again = advantages([rewards[i] for i in order], [labels[i] for i in order])
    assert again.values.tolist() == pytest.approx(found.values[order].tolist(), abs=1e-6)


def test_token_weights() -> None:
    lengths = torch.tensor([1, 3, 0])
    assert token_weights(lengths).tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])
    assert token_weights(lengths, "token").tolist() == pytest.approx([1 / 4] * 4)
    assert token_weights(lengths[:1], "constant", 8).tolist() == [1 / 8] * int(lengths[0])


def of(new: Tensor, old: Tensor, a: Tensor, w: Tensor, **how: float) -> Loss:
    """GRPO's loss of one trajectory."""
    batch = Batch(new, old, a, torch.tensor([len(new)]))
    return policy_loss(batch, w, Algorithm(**how))  # type: ignore[arg-type]


def loss(ratio: float, advantage: float, **how: float) -> tuple[float, float, float]:
    """(loss, share of clipped tokens, gradient with respect to the new log-probability)."""
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    one = torch.ones(1)
    found = of(new, torch.zeros(1), advantage * one, one, **how)
    found.loss.backward()
    assert new.grad is not None
    return float(found.loss.detach()), float(found.clipped), float(new.grad)


SURROGATES = [
    (1.0, 2.0, -2.0, 0.0, -2.0),
    (1.1, 2.0, -2.2, 0.0, -2.2),
    (1.5, 2.0, -2.4, 1.0, 0.0),  # gained enough: held at 1.2
    (0.5, 2.0, -1.0, 0.0, -1.0),  # lost ground: never clipped
    (1.5, -2.0, 3.0, 0.0, 3.0),
    (0.5, -2.0, 1.6, 1.0, 0.0),  # avoided enough: held at 0.8
]


@pytest.mark.parametrize(("ratio", "advantage", "expected", "clipped", "gradient"), SURROGATES)
def test_clipped_surrogate_by_hand(ratio, advantage, expected, clipped, gradient) -> None:
    assert loss(ratio, advantage) == pytest.approx((expected, clipped, gradient), abs=1e-6)


def test_asymmetric_clips() -> None:
    assert loss(1.5, 1.0, clip_high=0.28)[0] == pytest.approx(-1.28)
    assert loss(0.5, -1.0, clip_low=0.4)[0] == pytest.approx(0.6)


def test_loss_of_several_tokens() -> None:
    new = torch.tensor([0.1, -0.2, 0.0])
    old = torch.tensor([0.0, 0.0, 0.5])
    a = torch.tensor([1.0, -1.0, 1.0])
    w = torch.tensor([0.5, 0.25, 0.25])
    found = of(new, old, a, w)
    by_hand = 0.5 * -math.exp(0.1) + 0.25 * math.exp(-0.2) + 0.25 * -math.exp(-0.5)
    assert float(found.loss) == pytest.approx(by_hand)
    assert float(found.kl) == pytest.approx((-0.1 + 0.2 + 0.5) / 3)


def test_an_absurd_ratio_stays_finite() -> None:
    new = torch.tensor([80.0, -80.0], requires_grad=True)
    found = of(new, torch.zeros(2), torch.tensor([-1.0, 1.0]), torch.ones(2))
    found.loss.backward()
    assert torch.isfinite(found.loss)
    assert new.grad is not None and torch.isfinite(new.grad).all()
