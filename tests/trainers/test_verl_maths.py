"""Every loss and every advantage against verl's own function, on random inputs with masks, ties and
constant groups (run by .ci/verl, where verl is installed)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from trace_bench.trainers.algorithms import Algorithm, divergence, policy_loss
from trace_bench.trainers.algorithms.cispo import Cispo
from trace_bench.trainers.algorithms.dapo import Dapo
from trace_bench.trainers.algorithms.dr_grpo import DrGrpo
from trace_bench.trainers.algorithms.gspo import Gspo
from trace_bench.trainers.algorithms.reinforce_pp import ReinforcePlusPlus
from trace_bench.trainers.algorithms.rloo import Rloo
from trace_bench.trainers.grpo import Batch, Episodes, group_advantages, token_weights

pytestmark = pytest.mark.verl
core: Any = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")

close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
BATCHES = 40
MODES: dict[Literal["token", "trajectory"], str] = {
    "token": "token-mean",
    "trajectory": "seq-mean-token-mean",
}
Loss = tuple[str, Algorithm, tuple[float, float], str]
LOSSES: list[Loss] = [  # verl's name, our algorithm, the clips as verl takes them, its mean
    ("gspo", Gspo(), (3e-4, 4e-4), MODES["trajectory"]),
    ("cispo", Cispo(), (1.0, 4.0), MODES["token"]),
    ("vanilla", Algorithm(), (0.2, 0.2), MODES["trajectory"]),
    ("vanilla", Dapo(), (0.2, 0.28), MODES["token"]),
]


def batch(seed: int) -> tuple[Tensor, ...]:
    """[6, 9] new and old log-probabilities, advantages and a mask with gaps."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(6, 9, generator=g, dtype=torch.float64) * 4
    new = old + torch.randn(6, 9, generator=g, dtype=torch.float64) * (0.001 if seed % 2 else 0.5)
    mask = (torch.rand(6, 9, generator=g) < 0.7).double()
    mask[:, 0] = 1.0
    if seed == 0:
        new[0, 0] = old[0, 0] + 30.0  # beyond the clamp of the exponent
    return new, old, torch.randn(6, 9, generator=g, dtype=torch.float64), mask


def config(clips: tuple[float, float]) -> Any:
    """verl's settings of an actor."""
    from verl.workers.config import FSDPActorConfig

    low, high = clips
    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=low,
        clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=1e9,
    )  # fmt: skip


def test_losses_and_their_gradients() -> None:
    """Ours by trajectories, ours in verl's place by rows and with weights of tokens, and verl's;
    beside them the means and the divergences."""
    from trace_bench.trainers.verl.engine import policy_loss as in_rows

    for seed in range(BATCHES):
        new, old, advantages, mask = batch(seed)
        real, lengths = mask.bool(), mask.sum(-1).long()
        drawn = torch.rand(6, 9, generator=torch.Generator().manual_seed(seed)).double()
        for name, algorithm, clips, mode in LOSSES:
            theirs_of, how = core.get_policy_loss_fn(name), config(clips)
            flat, padded = new[real].clone().requires_grad_(), new.clone().requires_grad_()
            weights = token_weights(lengths, *algorithm.aggregation()).double()
            tokens = Batch(flat, old[real], advantages[real], lengths)
            ours = policy_loss(tokens, weights, algorithm)
            theirs, metrics = theirs_of(old, padded, advantages, mask, mode, how)
            ours.loss.backward()
            theirs.backward()
            assert flat.grad is not None and padded.grad is not None
            close(ours.loss, theirs)
            close(flat.grad, padded.grad[real])
            assert float(ours.clipped) == pytest.approx(
                float(metrics["actor/pg_clipfrac"]), abs=1e-6
            )
            arguments = (old, new, advantages, mask, mode, how, drawn)
            close(in_rows(algorithm, *arguments)[0], theirs_of(*arguments)[0])
        for aggregate, mode in (*MODES.items(), ("constant", "seq-mean-token-sum-norm")):
            weights = token_weights(lengths, aggregate, 37 if aggregate == "constant" else None)
            theirs = core.agg_loss(new, mask, mode, loss_scale_factor=37)
            close((weights.double() * new[real]).sum(), theirs)
        if seed:
            close(divergence(new, old), core.kl_penalty(new, old, "low_var_kl"))
            told = policy_loss(Batch(new[real], old[real], advantages[real], lengths),
                               token_weights(lengths), Algorithm()).kl  # fmt: skip
            close(told, core.kl_penalty(old[real], new[real], "k1").mean())


def rewards(seed: int) -> tuple[Tensor, Tensor]:
    """12 groups of 8: levels with ties, a constant group of each kind, and two of 2 and 3."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice([0.0, 0.25, 0.5, 1.0], size=(12, 8))
    drawn[0], drawn[1], drawn[2] = 0.0, 1.0, 0.5
    values = np.concatenate([drawn.reshape(-1), rng.random(5)])
    group = np.concatenate([np.repeat(np.arange(12), 8), [12, 12, 13, 13, 13]])
    order = rng.permutation(len(values))
    return torch.tensor(values[order]), torch.tensor(group[order])


def test_advantages() -> None:
    """Of every algorithm; without the lost episodes."""
    of_groups = core.compute_grpo_outcome_advantage
    for seed in range(10):
        values, group = rewards(seed)
        one = torch.ones(len(values), 1, dtype=torch.float64)
        ours = group_advantages(values, group)
        theirs, _ = of_groups(values[:, None].clone(), one, group.numpy())
        close(ours.values.double(), theirs[:, 0])
        assert ours.constant >= 3 and not ours.values[~ours.trained].any()
        lost = torch.arange(len(values)) % 7 == 0
        ours, kept = group_advantages(torch.where(lost, torch.nan, values), group), ~lost
        theirs, _ = of_groups(values[kept][:, None].clone(), one[kept], group[kept].numpy())
        sizes = torch.tensor([int((group[kept] == g).sum()) for g in group[kept]])
        close(ours.values[kept].double(), torch.where(sizes > 1, theirs[:, 0], 0.0))
        assert not ours.values[lost].any() and not ours.trained[lost].any()
        for algorithm in (Rloo(), ReinforcePlusPlus(), DrGrpo()):
            by_algorithm(algorithm, seed)


def by_algorithm(algorithm: Algorithm, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 5, (12,), generator=g).double() / 4
    drawn[:2] = torch.tensor([0.0, 1.0])  # not all are equal
    group, lengths = torch.arange(12) // 4, torch.randint(1, 7, (12,), generator=g)
    mask = (torch.arange(6) < lengths[:, None]).double()
    last = torch.zeros(12, 6, dtype=torch.float64)
    last[torch.arange(12), lengths - 1] = drawn
    episodes = Episodes(drawn, group, [[int(n)] for n in lengths])
    ours = algorithm.advantages(episodes).values.double()[:, None] * mask
    if algorithm.name == "reinforce_pp":
        theirs, _ = core.compute_reinforce_plus_plus_outcome_advantage(
            last, mask, config=SimpleNamespace(gamma=1.0)
        )
    elif algorithm.name == "rloo":
        theirs, _ = core.compute_rloo_outcome_advantage(last, mask, group.numpy())
    else:
        theirs, _ = core.compute_grpo_outcome_advantage(
            last, mask, group.numpy(), norm_adv_by_std_in_grpo=False
        )
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=2e-6)
