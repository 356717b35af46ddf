"""Every loss and advantage against verl's own function on random batches, and real jobs of verl by
our algorithms (run by .ci/verl, where verl is installed)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import verl_job as jobs
from models import save_mixture

from trace_bench.methods.making import Mix, draw
from trace_bench.trainers.algorithms import Algorithm, Batch, Episodes, divergence, importance
from trace_bench.trainers.algorithms.cispo import Cispo
from trace_bench.trainers.algorithms.dr_grpo import DrGrpo
from trace_bench.trainers.algorithms.gspo import Gspo
from trace_bench.trainers.algorithms.reinforce_pp import ReinforcePlusPlus
from trace_bench.trainers.algorithms.rloo import Rloo
from trace_bench.trainers.grpo import policy_loss, token_weights
from trace_bench.trainers.settings import Recipe

pytestmark = pytest.mark.verl
BATCHES = 200
LOSSES = {  # verl's name, and its settings
    "vanilla": (Algorithm(), 0.2, 0.2, "seq-mean-token-mean"),
    "gspo": (Gspo(), 3e-4, 4e-4, "seq-mean-token-mean"),
    "cispo": (Cispo(), 1.0, 4.0, "token-mean"),
}


@pytest.fixture(scope="module")
def verl() -> Any:
    return pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")


def batch(seed: int) -> tuple[torch.Tensor, ...]:
    """[6, 9] new and old log-probabilities, advantages and a mask with gaps."""
    g = torch.Generator().manual_seed(seed)
    old = -torch.rand(6, 9, generator=g, dtype=torch.float64) * 4
    new = old + torch.randn(6, 9, generator=g, dtype=torch.float64) * (0.001 if seed % 2 else 0.5)
    mask = (torch.rand(6, 9, generator=g) < 0.7).double()
    mask[:, 0] = 1.0
    return new, old, torch.randn(6, 9, generator=g, dtype=torch.float64), mask


def config(low: float, high: float, **more: Any) -> Any:
    """verl's settings of an actor."""
    from verl.workers.config import FSDPActorConfig

    return FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=low,
        clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=1e9, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(verl: Any, name: str) -> None:
    algorithm, low, high, mode = LOSSES[name]
    recipe, theirs_of = Recipe(algorithm=algorithm), verl.get_policy_loss_fn(name)
    given = config(low, high)
    for seed in range(BATCHES):
        new, old, advantages, mask = batch(seed)
        real, lengths = mask.bool(), mask.sum(-1).long()
        flat, padded = new[real].clone().requires_grad_(), new.clone().requires_grad_()
        weights = token_weights(lengths, *algorithm.aggregation(recipe)).double()
        found = Batch(flat, old[real], advantages[real], lengths)
        ours = policy_loss(found, weights, recipe)
        theirs, metrics = theirs_of(old, padded, advantages, mask, mode, given)
        ours.loss.backward()
        theirs.backward()
        assert flat.grad is not None and padded.grad is not None
        torch.testing.assert_close(ours.loss, theirs, rtol=0.0, atol=1e-6)
        torch.testing.assert_close(flat.grad, padded.grad[real], rtol=0.0, atol=1e-6)
        assert float(ours.clipped) == pytest.approx(float(metrics["actor/pg_clipfrac"]), abs=1e-6)


def test_what_verl_calls_is_the_same_loss(verl: Any) -> None:
    """Our function in verl's place, on rows with gaps and with weights of tokens."""
    from trace_bench.trainers.verl.engine import policy_loss as in_rows

    for seed in range(BATCHES):
        new, old, advantages, mask = batch(seed)
        weights = torch.rand(6, 9, dtype=torch.float64)
        for name, (algorithm, low, high, mode) in LOSSES.items():
            given = config(low, high)
            args = (old, new, advantages, mask, mode, given, weights)
            ours, _ = in_rows(Recipe(algorithm=algorithm), *args)
            theirs, _ = verl.get_policy_loss_fn(name)(*args)
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-6)


def test_constant_length(verl: Any) -> None:
    for seed in range(BATCHES):
        new, _, _, mask = batch(seed)
        weights = token_weights(mask.sum(-1).long(), *DrGrpo(length=37).aggregation(Recipe()))
        theirs = verl.agg_loss(new, mask, "seq-mean-token-sum-norm", loss_scale_factor=37)
        ours = (weights.double() * new[mask.bool()]).sum()
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("algorithm", [Rloo(), ReinforcePlusPlus(), DrGrpo()])
def test_advantages(verl: Any, algorithm: Algorithm) -> None:
    for seed in range(BATCHES):
        g = torch.Generator().manual_seed(seed)
        rewards = torch.randint(0, 5, (12,), generator=g).double() / 4
        rewards[:2] = torch.tensor([0.0, 1.0])  # not all are equal
        group = torch.arange(12) // 4
        lengths = torch.randint(1, 7, (12,), generator=g)
        mask = (torch.arange(6) < lengths[:, None]).double()
        last = torch.zeros(12, 6, dtype=torch.float64)
        last[torch.arange(12), lengths - 1] = rewards
        found = algorithm.advantages(
            Episodes(rewards, group, [[int(n)] for n in lengths]), Recipe()
        )
        ours = found.values.double()[:, None] * mask
        if algorithm.name == "reinforce_pp":
            theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(
                last, mask, config=SimpleNamespace(gamma=1.0)
            )
        elif algorithm.name == "rloo":
            theirs, _ = verl.compute_rloo_outcome_advantage(last, mask, group.numpy())
        else:
            theirs, _ = verl.compute_grpo_outcome_advantage(
                last, mask, group.numpy(), norm_adv_by_std_in_grpo=False
            )
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=2e-6)


def test_divergence_and_truncated_weights(verl: Any) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    for seed in range(BATCHES):
        new, old, _, mask = batch(seed)
        theirs = verl.kl_penalty(new, old, "low_var_kl")
        torch.testing.assert_close(divergence(new, old), theirs, rtol=0.0, atol=1e-6)
        weights, _ = compute_rollout_correction_weights(old - new, mask, "token", 2.0)
        ours = importance(old, new, 2.0)
        torch.testing.assert_close(ours * mask, weights * mask, rtol=0.0, atol=1e-6)


def test_a_job_by_verl_of_a_mixture_of_experts(tmp_path: Path) -> None:
    """Untied embeddings and experts, which have no adapter; another loss than verl's default, the
    divergence and truncated weights; logits that are never whole (as on GPUs: verl's fused kernels,
    here by torch); two processes."""
    fused = 'trainer.verl=["actor_rollout_ref.model.use_fused_kernels=true"]'
    more = ["trainer.algorithm.kl=0.01", "trainer.algorithm.truncate=2", fused]
    more += ["model=hf", f"model.path={save_mixture(tmp_path / 'model')}", "trainer.gpus=2"]
    more += ["trainer.target_modules=[q_proj,k_proj,v_proj,o_proj]"]
    settings = jobs.settings("budget=64", "trainer.algorithm=gspo", *more)
    tasks = draw(jobs.suite_of(settings), "converts_values", 16, Mix(0.2), 1, "train")
    lab = jobs.make_lab(tmp_path, settings)
    agent = lab.trainer.train(jobs.job("small", settings, tasks), lab)
    lab.close()
    assert [a.name for a in agent.adapters] == ["small@0002"]
    assert jobs.once_each(tmp_path) == {f"train/small/iter000{i}": 32 for i in range(2)}
    found = jobs.metrics(tmp_path)
    assert any(line["steps"] for line in found)
    assert all(line["grad_norm"] > 0 for line in found if line["steps"])
    for line in found:
        assert line["logprob_difference_mean"] < 1e-5 and line["logprob_difference_kl"] < 1e-8
