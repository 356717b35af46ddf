"""The advantages of trainer=local as an estimator of verl.

verl's own estimator computes in float32, where the mean of equal rewards may differ from them in
the last bit: eight rewards of 2/3 then have advantages of 0.056 instead of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from trace_bench.trainers.grpo import group_advantages
from trace_bench.trainers.verl.spec import ESTIMATOR


def advantages(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: np.ndarray,
    config: Mapping[str, Any],
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """(advantages, returns), both [rows, tokens], of rewards and mask of that shape; `index` [rows]
    is the group of each row. A group of equal rewards, or of one row, has advantages of zero."""
    rewards = token_level_rewards.sum(dim=-1)
    group = np.unique(index.astype(str), return_inverse=True)[1]
    found = group_advantages(
        rewards, torch.from_numpy(group), normalize_std=bool(config["norm_adv_by_std_in_grpo"])
    )
    spread = found.values.to(response_mask.device)[:, None] * response_mask
    return spread, spread


def register() -> None:
    """Makes the estimator known to verl in this process."""
    register_adv_est(ESTIMATOR)(advantages)
