"""The local trainer's settings. No heavy imports, so that the command line stays quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _at_least(low: float, high: float = float("inf")) -> dict[str, float]:
    """Field metadata: the range that is allowed, ends included."""
    return {"low": low, "high": high}


@dataclass(frozen=True)
class TrainerSettings:
    """GRPO with LoRA. The shape follows TRACE, section 3 (groups of rollouts of one task,
    standardization within a group, no KL term, linear decay, all linear projections); the sizes
    are those of the tiny agent: 30B models want a learning rate near 1e-5 and groups of 16."""

    group_size: int = field(default=8, metadata=_at_least(2))  # rollouts of one task
    groups: int = field(default=4, metadata=_at_least(1))  # tasks in one iteration
    learning_rate: float = field(default=3e-3, metadata=_at_least(0))
    decay: Literal["linear", "constant"] = "linear"  # over the job's rollouts, down to 0
    rank: int = field(default=16, metadata=_at_least(1))
    alpha: float = field(default=32.0, metadata=_at_least(0))  # updates are scaled by alpha / rank
    target_modules: tuple[str, ...] = LINEAR
    epochs: int = field(default=2, metadata=_at_least(1))  # passes over one iteration's rollouts
    minibatches: int = field(default=1, metadata=_at_least(1))  # optimizer steps in one pass
    clip_low: float = field(default=0.2, metadata=_at_least(0, 1))
    clip_high: float = field(default=0.2, metadata=_at_least(0))
    dual_clip: float | None = field(default=None, metadata=_at_least(1))
    aggregate: Literal["trajectory", "token"] = "trajectory"
    normalize_std: bool = True
    weight_decay: float = field(default=0.0, metadata=_at_least(0))
    max_grad_norm: float = field(default=1.0, metadata=_at_least(0))
    patience: int = field(default=5, metadata=_at_least(1))  # perfect iterations before stopping
    batch_tokens: int = field(default=16384, metadata=_at_least(1))  # in one forward pass
