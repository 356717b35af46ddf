"""The advantages of trainer=local as an estimator of verl.

verl's own estimator computes in float32, where the mean of equal rewards may differ from them in
the last bit: eight rewards of 2/3 then have advantages of 0.056 instead of 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from trace_bench.checklists.rewards import Assignment
from trace_bench.trainers import credit
from trace_bench.trainers.credit import unpacked
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


def by_checklist(
    episodes: Sequence[str], response_mask: Tensor, index: np.ndarray, how: Assignment
) -> Tensor:
    """The advantages [rows, tokens] of packed episodes (`credit.packed`), as trainer=local has
    them. `response_mask` [rows, tokens] is 1 at the sampled tokens, `index` [rows] the group."""
    found = [unpacked(text) for text in episodes]
    labels = np.unique(index.astype(str), return_inverse=True)[1]
    groups = [np.flatnonzero(labels == n).tolist() for n in range(int(labels.max()) + 1)]
    made = credit.by_checklist([r for r, _ in found], [each for _, each in found], groups, how)
    out = torch.zeros_like(response_mask, dtype=torch.float32)
    for row, tokens in enumerate(made.tokens or ()):
        places = response_mask[row].bool().nonzero()[:, 0]
        if len(tokens) and len(places):  # not of a row in no baseline, nor of one that pads
            out[row, places] = tokens.to(out.device)
    return out


def register() -> None:
    """Makes the estimator known to verl in this process."""
    register_adv_est(ESTIMATOR)(advantages)
