"""The arithmetic of trainer=local against verl's own functions, on random inputs with masks, ties
and constant groups (run by .ci/verl, where verl is installed)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trace_bench.trainers.algorithms import Batch
from trace_bench.trainers.grpo import (
    group_advantages,
    policy_loss,
    standardized,
    token_weights,
)
from trace_bench.trainers.settings import Recipe

pytestmark = pytest.mark.verl
MODES = {"token": "token-mean", "trajectory": "seq-mean-token-mean"}


@pytest.fixture(scope="module")
def verl() -> Any:
    return pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")


def rewards(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """12 groups of 8: levels with ties, a constant group of each kind, and two of 2 and 3."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice([0.0, 0.25, 0.5, 1.0], size=(12, 8))
    drawn[0], drawn[1], drawn[2] = 0.0, 1.0, 0.5
    values = np.concatenate([drawn.reshape(-1), rng.random(5)])
    group = np.concatenate([np.repeat(np.arange(12), 8), [12, 12, 13, 13, 13]])
    order = rng.permutation(len(values))
    return torch.tensor(values[order]), torch.tensor(group[order])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("normalize", [True, False])
def test_advantages(verl: Any, seed: int, normalize: bool) -> None:
    values, group = rewards(seed)
    ours = group_advantages(values, group, partial(standardized, normalize_std=normalize))
    mask = torch.ones(len(values), 1, dtype=torch.float64)
    theirs, _ = verl.compute_grpo_outcome_advantage(
        values[:, None].clone(), mask, group.numpy(), norm_adv_by_std_in_grpo=normalize
    )
    torch.testing.assert_close(ours.values.double(), theirs[:, 0], rtol=0.0, atol=1e-6)
    assert ours.constant >= 3 and not ours.values[~ours.trained].any()


@pytest.mark.parametrize("normalize", [True, False])
def test_what_verl_is_given_is_what_is_checked_here(verl: Any, normalize: bool) -> None:
    """Our estimator in verl's place, on float32 rewards at each row's last token; also for groups
    of equal rewards, of which verl's own makes an advantage, and for a row that pads the batch."""
    from trace_bench.trainers.verl.advantages import advantages
    from trace_bench.trainers.verl.spec import ESTIMATOR

    recipe = Recipe(normalize_std=normalize)
    name = f"{ESTIMATOR}_{normalize}"
    verl.register_adv_est(name)(partial(advantages, recipe))
    drawn = torch.tensor([2 / 3] * 8 + [0.1] * 8 + [0.0, 1.0] * 4 + [0.0])
    uid = np.array(["a"] * 8 + ["b"] * 8 + ["c"] * 8 + ["pad"], dtype=object)
    mask = (torch.arange(6) < 1 + torch.arange(25)[:, None] % 6).float()
    mask[-1] = 0.0
    last = (mask.sum(-1).long() - 1).clamp(min=0)
    rewards = torch.zeros(25, 6).scatter(1, last[:, None], drawn[:, None])
    ours, returns = verl.get_adv_estimator_fn(name)(
        token_level_rewards=rewards, response_mask=mask, index=uid, config={}
    )
    theirs, _ = verl.compute_grpo_outcome_advantage(
        rewards.clone(), mask, uid, norm_adv_by_std_in_grpo=normalize
    )
    assert ours is returns and ours.dtype == torch.float32
    assert not ours[:16].any() and not ours[-1].any()
    assert theirs[:16].abs().max() > (0.05 if normalize else 1e-9)
    torch.testing.assert_close(ours[16:24], theirs[16:24], rtol=0.0, atol=1e-6)


def test_lost_episodes_leave_the_group_as_if_they_had_not_been(verl: Any) -> None:
    values, group = rewards(9)
    lost = torch.arange(len(values)) % 7 == 0
    ours = group_advantages(torch.where(lost, torch.nan, values), group)
    kept = ~lost
    theirs, _ = verl.compute_grpo_outcome_advantage(
        values[kept][:, None].clone(), torch.ones(int(kept.sum()), 1), group[kept].numpy()
    )
    sizes = torch.tensor([int((group[kept] == g).sum()) for g in group[kept]])
    wanted = torch.where(sizes > 1, theirs[:, 0], 0.0)  # verl trains on groups of one, we do not
    torch.testing.assert_close(ours.values[kept].double(), wanted, rtol=0.0, atol=1e-6)
    assert not ours.values[lost].any() and not ours.trained[lost].any()


def batch(seed: int) -> tuple[torch.Tensor, ...]:
    """[16, 24] new and old log-probabilities and advantages, and lengths of 1 to 24."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(16, 24, generator=generator, dtype=torch.float64) * 4
    new = old + torch.randn(16, 24, generator=generator, dtype=torch.float64) * 0.4
    new[0, 0] = old[0, 0] + 30.0  # beyond the clamp of the exponent
    advantages = torch.randn(16, generator=generator, dtype=torch.float64)
    advantages[3] = 0.0
    lengths = torch.randint(1, 25, (16,), generator=generator)
    return new, old, advantages, lengths


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aggregate", MODES)
@pytest.mark.parametrize("clips", [(0.2, 0.2), (0.2, 0.28)])
@pytest.mark.parametrize("dual", [3.0, None])
def test_the_clipped_loss_and_its_gradient(
    verl: Any, seed: int, aggregate: str, clips: tuple[float, float], dual: float | None
) -> None:
    new, old, advantages, lengths = batch(seed)
    mask = (torch.arange(24) < lengths[:, None]).double()
    real = mask.bool()
    flat = new[real].clone().requires_grad_()
    spread = advantages.repeat_interleave(lengths)
    recipe = Recipe(clip_low=clips[0], clip_high=clips[1], dual_clip=dual)
    weights = token_weights(lengths, aggregate).double()
    ours = policy_loss(Batch(flat, old[real], spread, lengths), weights, recipe)
    ours.loss.backward()
    given = {"clip_ratio_c": dual or 1e30}
    config = SimpleNamespace(
        clip_ratio=clips[0], clip_ratio_low=clips[0], clip_ratio_high=clips[1],
        get=given.get, global_batch_info={},
    )  # fmt: skip
    padded = new.clone().requires_grad_()
    theirs, metrics = verl.compute_policy_loss_vanilla(
        old, padded, advantages[:, None].expand(16, 24), mask, MODES[aggregate], config
    )
    theirs.backward()
    assert padded.grad is not None and flat.grad is not None
    torch.testing.assert_close(ours.loss, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(flat.grad, padded.grad[real], rtol=1e-6, atol=1e-6)
    assert float(ours.clipped) == pytest.approx(metrics["actor/pg_clipfrac"], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aggregate", MODES)
def test_aggregation_of_any_numbers(verl: Any, seed: int, aggregate: str) -> None:
    new, _, _, lengths = batch(seed)
    mask = (torch.arange(24) < lengths[:, None]).double()
    ours = (token_weights(lengths, aggregate).double() * new[mask.bool()]).sum()
    theirs = verl.agg_loss(new, mask, MODES[aggregate])
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_the_divergence_that_is_shown(verl: Any) -> None:
    """Ours is the mean of verl's k1 estimate of KL(old, new)."""
    new, old, advantages, lengths = batch(1)
    new[0, 0] = old[0, 0]
    mask = torch.arange(24) < lengths[:, None]
    spread = advantages.repeat_interleave(lengths)
    given = Batch(new[mask], old[mask], spread, lengths)
    ours = policy_loss(given, token_weights(lengths), Recipe())
    theirs = verl.kl_penalty(old[mask], new[mask], "k1").mean()
    torch.testing.assert_close(ours.kl, theirs, rtol=0.0, atol=1e-6)
