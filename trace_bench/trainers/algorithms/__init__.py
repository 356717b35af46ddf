"""Algorithms of reinforcement learning: how a batch of rollouts becomes advantages and a loss, as
pure functions that every trainer runs (docs/algorithms.md).

An algorithm is a frozen dataclass that inherits `Algorithm`, whose functions are GRPO's: it
overrides those in which it differs, and its fields are its settings. `trainer.algorithm=NAME`
chooses one, with the settings trainer.algorithm.*; a name is one of the package's own, an entry
point in `trace_bench.algorithms`, or module:attribute.

Which task comes next is the course of a training (`trainers.course`, the setting `resample`) and
not an algorithm's: it is the same for all.

Nothing here imports torch when it is imported, so that the command line stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from trace_bench.core.checked import BY_MODEL, PLACE, Chosen
from trace_bench.core.errors import UserError
from trace_bench.core.types import Meta, Natural, NotNegative, Positive, Share
from trace_bench.settings.registry import Offered
from trace_bench.trainers import grpo
from trace_bench.trainers.grpo import LARGEST, Advantages, Batch, Each, Episodes

if TYPE_CHECKING:
    from torch import Tensor

SETTING = "trainer.algorithm"

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

FUSED = {"qkv_proj": LINEAR[:3], "gate_up_proj": LINEAR[4:6]}
"""vLLM's names for layers that it computes as one."""

GRADIENT = 1.0
"""The norm to which every trainer clips gradients."""


@dataclass(frozen=True)
class Algorithm(Chosen):
    """Group-relative policy optimization: rewards less their group's mean, by its deviation; the
    clipped ratio of new and old probability as the loss."""

    name: str = "grpo"
    clip_low: Share = 0.2
    """Lower clip of the probability ratio."""
    clip_high: NotNegative = 0.2
    """Upper clip of the probability ratio."""
    kl: NotNegative = 0.0
    """Weight of the divergence from the base model (the adapter off; the estimate k3) in the loss:
    GRPO's paper has 0.04, others 0.001. It costs one more pass over each rollout."""

    source: ClassVar[str] = "Shao et al. 2024, arXiv 2402.03300"
    observations: ClassVar[bool] = False
    """Whether its advantages need `Episodes.seen`."""
    checklists: ClassVar[bool] = True
    """Whether a method's checklists (method=cm2) may take the place of its advantages."""

    @classmethod
    def offered(cls) -> Mapping[str, type]:
        return Offered(SETTING, Algorithm)

    def advantages(self, episodes: Episodes) -> Advantages:
        """The advantages of an iteration's episodes."""
        return grpo.group_advantages(episodes.rewards, episodes.group, self.of_group)

    def of_group(self, rewards: Tensor) -> Tensor:
        """The advantages [members] of a group whose rewards [members] are not all equal."""
        return grpo.standardized(rewards)

    def loss(self, batch: Batch) -> Each:
        """The loss of each token."""
        return self.clipped(batch.ratio, batch.advantages)

    def clipped(self, ratio: Tensor, advantages: Tensor) -> Each:
        """max(-A r, -A clip(r, 1 - low, 1 + high)), PPO's surrogate (arXiv 1707.06347, equation 7).
        Asymmetric clips: DAPO, section 3.1."""
        plain = -advantages * ratio
        bounded = -advantages * ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        return Each(plain.maximum(bounded), bounded > plain)

    def aggregation(self) -> tuple[str, int | None]:
        """How tokens are weighted, as for `grpo.token_weights`: (aggregate, constant length)."""
        return "trajectory", None


@dataclass(frozen=True)
class Recipe:
    """GRPO with LoRA, for every trainer. The algorithm follows TRACE, section 3 (groups of rollouts
    of one task, standardization within a group, no KL term, linear decay, all linear projections);
    the default sizes suit the tiny agent; 30B models need groups of 16."""

    algorithm: Algorithm = field(default_factory=Algorithm)
    """How rollouts become advantages and a loss: --help trainer.algorithm lists them all; one of
    your own as module:attribute (docs/algorithms.md)."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Rollouts of one task."""
    groups: Positive = 4
    """Tasks in one iteration."""
    learning_rate: NotNegative = field(default=3e-3, metadata=BY_MODEL)
    """Of AdamW, at the first step; null: what suits the model (docs/models.md)."""
    decay: Literal["linear", "constant"] = "linear"
    """linear: over the rollouts of one adapter, down to 0; or constant."""
    resample: Natural = 0
    """How often an iteration's constant groups are replaced by new ones (DAPO, Yu et al. 2025,
    arXiv 2503.14476, section 3.2, samples until none is left); all of them are paid for."""
    rank: Positive = 16
    """Of the LoRA matrices."""
    alpha: NotNegative = 32.0
    """Updates are scaled by alpha / rank."""
    target_modules: tuple[str, ...] = LINEAR
    """The linear layers that have an adapter. Of a mixture of experts those of attention: the
    experts of a layer are one parameter in transformers 5, which LoRA on layers does not reach."""
    epochs: Positive = 2
    """Passes over the rollouts of one iteration."""
    minibatches: Positive = 1
    """Optimizer steps in one pass."""
    batch_tokens: Positive = 16384
    """Tokens (of one process) in one forward pass."""
    mismatch: NotNegative = field(default=0.01, metadata=PLACE)
    """The mean difference between the sampler's and the trainer's log-probabilities that is an
    alarm; ten times as much stops the run."""

    @property
    def served_modules(self) -> list[str]:
        """The layers of an adapter as vLLM is told them, which else makes room for adapters in all
        layers, a mixture's experts included."""
        fused = [name for name, parts in FUSED.items() if set(parts) & set(self.target_modules)]
        return [*self.target_modules, *fused]

    @property
    def by(self) -> str:
        """The algorithm where it is not GRPO, in words."""
        return "" if self.algorithm == Algorithm() else f" by {self.algorithm.name}"

    def too_few(self, name: str, rollouts: int, groups: int) -> UserError:
        """The UserError for a training whose rollouts do not pay for so many groups."""
        return UserError(
            f"training {name!r} has {rollouts} rollouts and needs at least "
            f"{groups * self.group_size} ({groups} groups of {self.group_size}). Raise the setting "
            "`budget`, or lower `trainer.group_size`."
        )


def total(batch: Batch, algorithm: Algorithm) -> Each:
    """The algorithm's loss of each token, with the divergence."""
    each = algorithm.loss(batch)
    if algorithm.kl == 0:
        return each
    assert batch.base is not None
    return Each(each.values + algorithm.kl * divergence(batch.new, batch.base), each.clipped)


def divergence(new: Tensor, base: Tensor) -> Tensor:
    """The estimate k3 of KL(new, base) at each token, exp(d) - d - 1 with d = base - new, at most
    10 (J. Schulman, "Approximating KL divergence"; DeepSeekMath, equation 4; bounds as in verl)."""
    apart = (base - new).clamp(-LARGEST, LARGEST)
    return (apart.exp() - apart - 1.0).clamp(-10.0, 10.0)


@dataclass(frozen=True)
class Loss:
    """`loss` carries the gradient; the rest is detached. `clipped` is the share of tokens whose
    loss is clipped, `kl` the mean over tokens of old - new log-probabilities."""

    loss: Tensor
    clipped: Tensor
    kl: Tensor


def policy_loss(batch: Batch, weights: Tensor, algorithm: Algorithm) -> Loss:
    """The loss of a batch: the sum over its tokens, weighted."""
    each = total(batch, algorithm)
    kl = -(batch.new.detach() - batch.old).mean()
    return Loss((weights * each.values).sum(), each.clipped.float().mean(), kl)
