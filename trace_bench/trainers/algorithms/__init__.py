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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from trace_bench.core.checked import BY_MODEL, PLACE, Chosen, identifying, parameters
from trace_bench.core.errors import UserError
from trace_bench.core.types import Meta, Natural, NotNegative, Positive, Share
from trace_bench.settings.registry import Offered

if TYPE_CHECKING:
    from torch import Tensor

SETTING = "trainer.algorithm"

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

FUSED = {"qkv_proj": LINEAR[:3], "gate_up_proj": LINEAR[4:6]}
"""vLLM's names for layers that it computes as one."""

LOSS = frozenset({"clip_low", "clip_high", "aggregate", "normalize_std"})
"""The settings of the trainer that are GRPO's, which another algorithm may replace."""
SAME = 1e-8  # rewards closer than this are equal
GRADIENT = 1.0
"""The norm to which every trainer clips gradients."""
_LARGEST = 20.0  # of a difference of log-probabilities, before its exponential (as in verl)


@dataclass(frozen=True)
class Batch:
    """The sampled tokens of whole sequences, one after the other, all [tokens] but `lengths`
    [sequences]: of trajectories, or of the stretches of those that were rendered anew. `new`:
    log-probabilities with the gradient; `old`: before the iteration's first step; `sampler`: as it
    reported them; `base`: without an adapter."""

    new: Tensor
    old: Tensor
    advantages: Tensor
    lengths: Tensor
    sampler: Tensor | None = None
    base: Tensor | None = None

    @property
    def ratio(self) -> Tensor:
        """new / old probability of each token."""
        return (self.new - self.old).clamp(-_LARGEST, _LARGEST).exp()


@dataclass(frozen=True)
class Each:
    """The loss of each token, before it is weighted, and whether it is clipped."""

    values: Tensor
    clipped: Tensor


@dataclass(frozen=True)
class Episodes:
    """What advantages depend on. rewards: float64 [episodes], NaN for one that was lost; group:
    int [episodes], the label of its task's group; turns: the sampled tokens of each turn of each
    episode; seen: what each turn was an answer to, equal texts for equal observations, if the
    algorithm asks for `observations`."""

    rewards: Tensor
    group: Tensor
    turns: Sequence[Sequence[int]]
    seen: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Advantages:
    """`values` [n] are the advantages (0 where not `trained`); `trained` [n]: whether a trajectory
    enters the loss. `tokens`: the advantages of each trajectory's sampled tokens, if they differ
    within it; `values` are then their means. The counts are of groups, `failed` of trajectories;
    `all_zero`, `all_one`: groups in which all rewards are 0, or all are 1."""

    values: Tensor
    trained: Tensor
    groups: int
    constant: int
    all_zero: int
    all_one: int
    failed: int
    tokens: tuple[Tensor, ...] | None = None

    def spread(self, members: Sequence[int], lengths: Tensor) -> Tensor:
        """The advantage of each sampled token of these trajectories, which have `lengths`."""
        import torch

        if self.tokens is None:
            return self.values[list(members)].repeat_interleave(lengths)
        return torch.cat([self.tokens[n] for n in members])


@dataclass(frozen=True)
class Algorithm(Chosen):
    """Group-relative policy optimization: rewards less their group's mean, by its deviation; the
    clipped ratio of new and old probability as the loss. `trainer.*` has its settings."""

    name: str = "grpo"
    kl: NotNegative = 0.0
    """Weight of the divergence from the base model (the adapter off; the estimate k3) in the loss:
    GRPO's paper has 0.04, others 0.001. It costs one more pass over each rollout."""
    truncate: Annotated[float, Meta(ge=1)] | None = None
    """Truncated importance sampling: a token's loss is weighted by min(p_trainer / p_sampler, this)
    where sampler and trainer round differently (2 is usual); null: no weight."""

    source: ClassVar[str] = "Shao et al. 2024, arXiv 2402.03300"
    heeds: ClassVar[frozenset[str]] = LOSS
    """The settings of `LOSS` that it uses; the others must be left at their defaults."""
    observations: ClassVar[bool] = False
    """Whether its advantages need `Episodes.seen`."""
    checklists: ClassVar[bool] = True
    """Whether a method's checklists (method=cm2) may take the place of its advantages."""

    @classmethod
    def offered(cls) -> Mapping[str, type]:
        return Offered(SETTING, Algorithm)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it is given besides the rollouts and their rewards."""
        asked = {
            "the base model": self.kl > 0,
            "the sampler's probabilities": self.truncate is not None,
            "equal observations": self.observations,
        }
        return tuple(name for name, wanted in asked.items() if wanted)

    def check(self, recipe: Recipe) -> None:
        """Raises UserError for settings of the trainer that it does not heed."""
        declared = parameters(type(recipe))
        for name in sorted(LOSS - self.heeds):
            if (value := getattr(recipe, name)) != declared[name].default:
                raise UserError(
                    f"trainer.{name}={value} is no setting of {SETTING}={self.name}; allowed "
                    f"there: {', '.join(sorted(self.heeds)) or 'none'} and {SETTING}.*. Leave "
                    f"`trainer.{name}` out, or change `{SETTING}`."
                )

    def advantages(self, episodes: Episodes, recipe: Recipe) -> Advantages:
        """The advantages of an iteration's episodes."""
        from trace_bench.trainers.grpo import group_advantages

        return group_advantages(
            episodes.rewards, episodes.group, lambda rewards: self.of_group(rewards, recipe)
        )

    def of_group(self, rewards: Tensor, recipe: Recipe) -> Tensor:
        """The advantages [members] of a group whose rewards [members] are not all equal."""
        from trace_bench.trainers.grpo import standardized

        return standardized(rewards, recipe.normalize_std)

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        """The loss of each token."""
        return clipped(batch.ratio, batch.advantages, recipe.clip_low, recipe.clip_high)

    def aggregation(self, recipe: Recipe) -> tuple[str, int | None]:
        """How tokens are weighted, as for `grpo.token_weights`: (aggregate, constant length)."""
        return recipe.aggregate, None


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
    clip_low: Share = 0.2
    """Lower clip of the probability ratio."""
    clip_high: NotNegative = 0.2
    """Upper clip of the probability ratio."""
    aggregate: Literal["trajectory", "token"] = "trajectory"
    """trajectory: the mean over each trajectory's tokens first; token: over all tokens."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    batch_tokens: Positive = 16384
    """Tokens (of one process) in one forward pass."""
    mismatch: NotNegative = field(default=0.01, metadata=PLACE)
    """The mean difference between the sampler's and the trainer's log-probabilities that is an
    alarm; ten times as much stops the run."""

    def __post_init__(self) -> None:
        self.algorithm.check(self)

    @property
    def served_modules(self) -> list[str]:
        """The layers of an adapter as vLLM is told them, which else makes room for adapters in all
        layers, a mixture's experts included."""
        fused = [name for name, parts in FUSED.items() if set(parts) & set(self.target_modules)]
        return [*self.target_modules, *fused]

    @property
    def by(self) -> str:
        """The algorithm where it is not GRPO, and what it is given, in words."""
        if self.algorithm == Algorithm():
            return ""
        inputs = ", ".join(self.algorithm.inputs)
        return f" by {self.algorithm.name}" + (f", given {inputs}" if inputs else "")

    def trained(self) -> dict[str, Any]:
        """The settings that decide what is trained: those of a job's identity, as plain data."""
        return identifying(self)


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Each:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), PPO's surrogate (arXiv 1707.06347, equation 7).
    Asymmetric clips: DAPO, section 3.1."""
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return Each(plain.maximum(bounded), bounded > plain)


def total(batch: Batch, recipe: Recipe) -> Each:
    """The algorithm's loss of each token, with truncated importance sampling and divergence."""
    algorithm = recipe.algorithm
    each = algorithm.loss(batch, recipe)
    values = each.values
    if algorithm.truncate is not None:
        assert batch.sampler is not None
        values = values * importance(batch.old, batch.sampler, algorithm.truncate)
    if algorithm.kl > 0:
        assert batch.base is not None
        values = values + algorithm.kl * divergence(batch.new, batch.base)
    return Each(values, each.clipped)


def importance(old: Tensor, sampler: Tensor, most: float) -> Tensor:
    """min(p_trainer / p_sampler, most) of each token, without a gradient."""
    return (old - sampler).detach().clamp(-_LARGEST, _LARGEST).exp().clamp(max=most)


def divergence(new: Tensor, base: Tensor) -> Tensor:
    """The estimate k3 of KL(new, base) at each token, exp(d) - d - 1 with d = base - new, at most
    10 (J. Schulman, "Approximating KL divergence"; DeepSeekMath, equation 4; bounds as in verl)."""
    apart = (base - new).clamp(-_LARGEST, _LARGEST)
    return (apart.exp() - apart - 1.0).clamp(-10.0, 10.0)


@dataclass(frozen=True)
class Loss:
    """`loss` carries the gradient; the rest is detached. `clipped` is the share of tokens whose
    loss is clipped, `kl` the mean over tokens of old - new log-probabilities."""

    loss: Tensor
    clipped: Tensor
    kl: Tensor


def policy_loss(batch: Batch, weights: Tensor, recipe: Recipe) -> Loss:
    """The loss of a batch by the recipe's algorithm: the sum over its tokens, weighted."""
    each = total(batch, recipe)
    kl = -(batch.new.detach() - batch.old).mean()
    return Loss((weights * each.values).sum(), each.clipped.float().mean(), kl)
