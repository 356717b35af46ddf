"""verl's FSDP engine with the learning rate of the job's course, the number of optimizer steps that
had a gradient, and a head that fused kernels can read; the algorithm's loss; and a longer limit for
processes that wait. verl imports this through `actor_rollout_ref.model.external_lib`, before its
processes meet; it then finds the class for the CPU and for NVIDIA GPUs."""

from __future__ import annotations

import functools
import math
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import Batch
from trace_bench.trainers.verl.spec import JOB_VARIABLE, LOSS, RATE, STEPS, JobSpec


class VerlEngine(FSDPEngineWithLMHead):
    """verl's engine with the rate that it is told, a count of its steps, and a whole head."""

    _stepped = 0  # optimizer steps of this iteration that had a gradient

    def optimizer_step(self) -> float:
        """The norm of the gradient, of all processes together."""
        norm = float(super().optimizer_step())
        self._stepped += math.isfinite(norm) and norm > 0.0
        return norm

    def train_batch(self, data: Any, loss_function: Any) -> Any:
        for group in self.optimizer.param_groups:
            group["lr"] = data[RATE]
        out = super().train_batch(data, loss_function)
        if self.is_mp_src_rank_with_outputs():
            out["metrics"][STEPS] = [self._stepped]  # a list, as verl joins those of all processes
        return out

    def lr_scheduler_step(self) -> Any:
        """Ends an iteration; returns the rate that it had."""
        self._stepped, rate = 0, self.optimizer.param_groups[0]["lr"]
        super().lr_scheduler_step()
        return rate

    def _build_fsdp_module(self, module: Any) -> Any:
        """As verl's, with a head that is not sharded by itself where kernels are fused: they read
        its weights outside of its `forward`, where each process would have a part of them (verl
        0.9.1 with untied embeddings and FSDP2). With tied embeddings verl does so too."""
        config = module.config
        tied = config.tie_word_embeddings
        config.tie_word_embeddings = tied or self.model_config.use_fused_kernels
        try:
            return super()._build_fsdp_module(module)
        finally:
            config.tie_word_embeddings = tied


def policy_loss(
    algorithm: Algorithm,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """(loss, metrics) of rows of tokens, all [rows, tokens], as verl calls it; verl adds the
    divergence, and computes the weights of truncated importance sampling."""
    mask = response_mask.bool()
    batch = Batch(log_prob[mask], old_log_prob[mask], advantages[mask], mask.sum(-1))
    each = algorithm.loss(batch)
    rows = torch.zeros_like(log_prob).masked_scatter(mask, each.values)
    if rollout_is_weights is not None:
        rows = rows * rollout_is_weights
    loss = agg_loss(rows, response_mask, loss_agg_mode, **config.global_batch_info)
    tokens = max(len(batch.new), 1)
    return loss, {
        "actor/pg_clipfrac": float(each.clipped.sum()) / tokens,
        "actor/ppo_kl": float((batch.old - batch.new).detach().sum()) / tokens,
        "actor/pg_clipfrac_lower": 0.0,
    }


@functools.cache
def algorithm_of(folder: str) -> Algorithm:
    """The algorithm of the job that a process works for."""
    return JobSpec.read(Path(folder)).trainer.algorithm


def register() -> None:
    """Registers the loss, and the engine for the CPU and NVIDIA GPUs alone."""
    for device, vendor in (("cpu", None), ("cuda", "nvidia")):
        EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device, vendor)(VerlEngine)

    @register_policy_loss(LOSS)
    def of_the_job(*tensors: Any, **named: Any) -> tuple[Tensor, dict[str, Any]]:
        return policy_loss(algorithm_of(os.environ[JOB_VARIABLE]), *tensors, **named)


def wait_longer() -> None:
    """Gives processes that wait for one another in this job as long as it may stall, in groups that
    are made from now on. torch's limit for GPUs is ten minutes, in which the first process may
    still read 60 GB; verl has a setting for it that it does not read (`nccl_timeout`)."""
    if (folder := os.environ.get(JOB_VARIABLE)) is None:
        return
    limit = timedelta(seconds=JobSpec.read(Path(folder)).trainer.stall)
    distributed_c10d.default_pg_timeout = distributed_c10d.default_pg_nccl_timeout = limit


wait_longer()
register()
