"""The algorithm's loss in verl's place: registered in each process that trains."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss

from trace_bench.trainers.algorithms import Batch
from trace_bench.trainers.settings import Recipe
from trace_bench.trainers.verl.spec import JOB_VARIABLE, LOSS, read_spec


def policy_loss(
    recipe: Recipe,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """(loss, metrics) of rows of tokens, all [rows, tokens], as verl calls it; verl adds the
    divergence from the base model itself, and computes the weights of truncated importance
    sampling. It hands over no other field, so the log-probabilities of a teacher come as
    `advantages`, of which an algorithm that has one makes no use."""
    mask = response_mask.bool()
    given = advantages[mask]
    teacher = given if recipe.algorithm.taught else None
    batch = Batch(log_prob[mask], old_log_prob[mask], given, mask.sum(-1), teacher=teacher)
    each = recipe.algorithm.loss(batch, recipe)
    rows = torch.zeros_like(log_prob).masked_scatter(mask, each.values)
    if rollout_is_weights is not None:
        rows = rows * rollout_is_weights
    loss = agg_loss(rows, response_mask, loss_agg_mode, **config.global_batch_info)
    shown = max(len(batch.new), 1)
    return loss, {
        "actor/pg_clipfrac": float(each.clipped.sum()) / shown,
        "actor/ppo_kl": float((batch.old - batch.new).detach().sum()) / shown,
        "actor/pg_clipfrac_lower": 0.0,
    }


@functools.cache
def recipe_of(folder: str) -> Recipe:
    """The recipe of the job that a process works for."""
    return read_spec(Path(folder)).trainer


def register() -> None:
    @register_policy_loss(LOSS)
    def of_the_job(*given: Any, **named: Any) -> tuple[Tensor, dict[str, Any]]:
        return policy_loss(recipe_of(os.environ[JOB_VARIABLE]), *given, **named)
