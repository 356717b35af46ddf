"""The algorithms of papers, each with what it takes from its paper and where it differs.

The classes' own docstrings are what --help says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import LOSS, Algorithm, Batch, Each, Episodes, clipped

if TYPE_CHECKING:
    from torch import Tensor

    from trace_bench.core.types import Message, Trajectory
    from trace_bench.trainers.grpo import Advantages
    from trace_bench.trainers.settings import Recipe

_EPS = 1e-8  # added to REINFORCE++'s variance
_LARGEST = 10.0  # of the logarithm of GSPO's ratio, as in verl


# RLOO (Ahmadian et al. 2024, arXiv 2402.14740, section 2.2): the baseline of a rollout is the mean
# reward of the others of its group. The loss is the clipped ratio, which is the paper's plain
# policy gradient in the first step after the rollouts (as in verl).
@dataclass(frozen=True)
class Rloo(Algorithm):
    """Rewards less the mean of the others of the group, without division by a deviation."""

    name: str = "rloo"

    source: ClassVar[str] = "Ahmadian et al. 2024, arXiv 2402.14740"
    heeds: ClassVar[frozenset[str]] = LOSS - {"normalize_std"}
    checklists: ClassVar[bool] = False

    def of_group(self, rewards: Tensor, recipe: Recipe) -> Tensor:
        count = len(rewards)
        return (rewards - rewards.mean()) * (count / (count - 1))


# Dr. GRPO (Liu et al. 2025, arXiv 2503.20783, section 3.2): GRPO without the two divisions that
# favour some answers: by the deviation of a group's rewards, and by an answer's own length. The
# constant in its place is the longest answer allowed (`generate_max_length` in the authors'
# sail-sg/understand-r1-zero, train_zero_math.py).
@dataclass(frozen=True)
class DrGrpo(Algorithm):
    """GRPO without division by the deviation or by a trajectory's own length."""

    name: str = "dr_grpo"
    length: int = field(default=1024, metadata=number(1))
    """What the sum over a trajectory's tokens is divided by: the most tokens it may have."""

    source: ClassVar[str] = "Liu et al. 2025, arXiv 2503.20783"
    heeds: ClassVar[frozenset[str]] = frozenset({"clip_low", "clip_high", "dual_clip"})
    checklists: ClassVar[bool] = False

    def of_group(self, rewards: Tensor, recipe: Recipe) -> Tensor:
        return rewards - rewards.mean()

    def aggregation(self, recipe: Recipe) -> tuple[str, int | None]:
        return "constant", self.length


# REINFORCE++ (Hu et al. 2025, arXiv 2501.03262, section 3): rewards are normalized over the whole
# batch, not within a group; each rollout counts by its sampled tokens (as in verl).
@dataclass(frozen=True)
class ReinforcePlusPlus(Algorithm):
    """Rewards less the mean of the whole batch, by its deviation."""

    name: str = "reinforce_pp"

    source: ClassVar[str] = "Hu et al. 2025, arXiv 2501.03262"
    heeds: ClassVar[frozenset[str]] = LOSS - {"normalize_std"}
    checklists: ClassVar[bool] = False

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if recipe.resample:
            raise UserError(
                f"trainer.resample={recipe.resample} replaces groups of equal rewards, from which "
                f"trainer.algorithm={self.name} learns as well; allowed there: resample=0. Change "
                "`trainer.resample` or `trainer.algorithm`."
            )

    def advantages(self, episodes: Episodes, recipe: Recipe) -> Advantages:
        """A batch in which all rewards are equal has no learning signal."""
        from trace_bench.trainers.course import SAME

        found, rewards = super().advantages(episodes, recipe), episodes.rewards.double()
        lengths = rewards.new_tensor([sum(turns) for turns in episodes.turns])
        valid = ~rewards.isnan() & (lengths > 0)
        r, n = rewards[valid], lengths[valid]
        if len(r) < 2 or float(r.max() - r.min()) <= SAME:
            return replace(found, values=found.values * 0.0, trained=valid & False)
        centred = r - (n * r).sum() / n.sum()
        variance = (n * centred**2).sum() / (n.sum() - 1.0)
        values = rewards.new_zeros(len(rewards))
        values[valid] = centred / (variance + _EPS).sqrt()
        return replace(found, values=values.float(), trained=valid)


# DAPO (Yu et al. 2025, arXiv 2503.14476): a higher upper clip (section 3.1), the mean over all
# tokens (3.3), and a penalty for long answers (3.4). Its dynamic sampling (3.2) is the trainer's
# setting `resample`: `trainer=dapo` sets both. The authors' recipe in verl
# (run_dapo_qwen2.5_32b.sh) has the penalty over the last 4096 of 20480 tokens and no divergence.
@dataclass(frozen=True)
class Dapo(Algorithm):
    """GRPO with a higher upper clip, the mean over all tokens, and a penalty for long answers."""

    name: str = "dapo"
    clip_low: float = field(default=0.2, metadata=number(0, 1))
    """Lower clip of the probability ratio."""
    clip_high: float = field(default=0.28, metadata=number(0))
    """Upper clip of the probability ratio."""
    longest: int = field(default=0, metadata=number(0))
    """Sampled tokens of an episode from which on its reward is 1 less; 0: no penalty."""
    margin: int = field(default=1, metadata=number(1))
    """Tokens before `longest` over which the penalty grows from 0."""

    source: ClassVar[str] = "Yu et al. 2025, arXiv 2503.14476"
    heeds: ClassVar[frozenset[str]] = frozenset({"normalize_std"})

    def advantages(self, episodes: Episodes, recipe: Recipe) -> Advantages:
        """Of the rewards with the penalty (equation 13)."""
        if not self.longest:
            return super().advantages(episodes, recipe)
        lengths = episodes.rewards.new_tensor([sum(turns) for turns in episodes.turns])
        over = (lengths - (self.longest - self.margin)) / self.margin
        rewards = episodes.rewards - over.clamp(0.0, 1.0)
        return super().advantages(replace(episodes, rewards=rewards), recipe)

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        return clipped(batch.ratio, batch.advantages, self.clip_low, self.clip_high)

    def aggregation(self, recipe: Recipe) -> tuple[str, int | None]:
        return "token", None


# GSPO in its token form (Zheng et al. 2025, arXiv 2507.18071, section 4.3): one ratio for a whole
# trajectory, s = exp(mean over its tokens of log r), which is clipped; with the value of s and the
# gradient of the token, so that the advantages of tokens may differ. The paper takes four
# minibatches of each batch of rollouts, one pass, no divergence (section 5.1): `trainer=gspo`.
@dataclass(frozen=True)
class Gspo(Algorithm):
    """GRPO with one probability ratio for a whole trajectory, of which the clips are narrow."""

    name: str = "gspo"
    clip_low: float = field(default=3e-4, metadata=number(0, 1))
    """Lower clip of the trajectory's ratio (section 5.1)."""
    clip_high: float = field(default=4e-4, metadata=number(0))
    """Upper clip of the trajectory's ratio."""

    source: ClassVar[str] = "Zheng et al. 2025, arXiv 2507.18071"
    heeds: ClassVar[frozenset[str]] = frozenset({"aggregate", "normalize_std"})

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        whole = means((batch.new - batch.old).detach(), batch.lengths)
        log_ratio = batch.new - batch.new.detach() + whole
        ratio = log_ratio.clamp(max=_LARGEST).exp()
        return clipped(ratio, batch.advantages, self.clip_low, self.clip_high)


def means(values: Tensor, lengths: Tensor) -> Tensor:
    """For each token the mean of its trajectory's `values` [tokens]."""
    which = lengths.new_tensor(range(len(lengths))).repeat_interleave(lengths)
    sums = values.new_zeros(len(lengths)).index_add(0, which, values)
    return (sums / lengths.clamp(min=1)).index_select(0, which)


# CISPO (MiniMax 2025, arXiv 2506.13585, equations 4 and 5): policy gradient in which the ratio is a
# weight without a gradient, so that no token is dropped; advantages as GRPO's, no divergence, the
# mean over all tokens. It is bounded from above alone, as the paper's experiments are; the bound,
# which the paper does not give, is that of ScaleRL (arXiv 2510.13786: 4 to 8 make little
# difference).
@dataclass(frozen=True)
class Cispo(Algorithm):
    """Policy gradient with the probability ratio as a bounded weight: no token is dropped."""

    name: str = "cispo"
    largest: float = field(default=5.0, metadata=number(1))
    """The most that a ratio weighs."""

    source: ClassVar[str] = "MiniMax 2025, arXiv 2506.13585"
    heeds: ClassVar[frozenset[str]] = frozenset({"normalize_std"})

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        ratio = batch.ratio.detach()
        weight = ratio.clamp(max=self.largest)
        return Each(-weight * batch.advantages * batch.new, ratio > weight)

    def aggregation(self, recipe: Recipe) -> tuple[str, int | None]:
        return "token", None


# GiGPO (Feng et al. 2025, arXiv 2505.10978, section 4): two levels. To the advantage of the whole
# trajectory within its group comes that of a step among all steps of the group that began with the
# same observation (anchor states), by the discounted return from there on. The reward comes at the
# end of an episode. A step that no other shares its observation with has no advantage of its own,
# as in the authors' `gigpo/core_gigpo.py` (langfengQ/verl-agent). Each trajectory counts once in
# its group's mean, as in equation 3; their batches hold a row for each step, and by default a
# trajectory counts there once for each of its steps. Observations are equal if their texts are, as
# there. A group in which all rewards are equal is dropped, as everywhere here, while theirs would
# still prefer the shorter episodes.
@dataclass(frozen=True)
class Gigpo(Algorithm):
    """GRPO, and beside it the advantage of a step among those that began with the same
    observation."""

    name: str = "gigpo"
    weight: float = field(default=1.0, metadata=number(0))
    """Of the steps' advantages."""
    gamma: float = field(default=0.95, metadata=number(0, 1))
    """The discount of the reward for each step before the last."""

    source: ClassVar[str] = "Feng et al. 2025, arXiv 2505.10978"
    observations: ClassVar[bool] = True
    checklists: ClassVar[bool] = False

    def advantages(self, episodes: Episodes, recipe: Recipe) -> Advantages:
        import torch

        from trace_bench.trainers.course import SAME

        found = super().advantages(episodes, recipe)
        steps = [
            [float(value)] * len(t) for value, t in zip(found.values, episodes.turns, strict=True)
        ]
        for places in anchors(episodes, found.trained.tolist()):
            returns = torch.stack([self._return(episodes, n, step) for n, step in places])
            if len(returns) > 1 and float(returns.max() - returns.min()) > SAME:
                added = self.of_group(returns, recipe) * self.weight
                for (n, step), value in zip(places, added.tolist(), strict=True):
                    steps[n][step] += value
        tokens = tuple(
            torch.tensor(values).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
            for values, lengths in zip(steps, episodes.turns, strict=True)
        )
        return replace(found, tokens=tokens)

    def _return(self, episodes: Episodes, n: int, step: int) -> Tensor:
        left = len(episodes.turns[n]) - 1 - step
        return episodes.rewards[n].double() * self.gamma**left


def anchors(episodes: Episodes, trained: list[bool]) -> Iterator[list[tuple[int, int]]]:
    """(episode, step) of the steps of a group that began with the same observation."""
    places: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for n, group in enumerate(episodes.group.tolist()):
        for step, text in enumerate(episodes.seen[n] if trained[n] else ()):
            places.setdefault((group, text), []).append((n, step))
    yield from places.values()


# SDPO and OPSD: the model is the teacher of its own tokens. Each rollout's tokens are read again by
# the same model with a lesson in the prompt, and the policy moves towards what it says then. With
# SDPO (Hübotter et al. 2026, arXiv 2601.20802) the lesson is the best other rollout of the group,
# if that succeeded; with OPSD (Zhao et al., github.com/siyan-zhao/OPSD) the task's reference. The
# divergence is KL(policy, teacher) at each token, estimated by the token that was sampled: its
# gradient is that of a policy gradient with log q(token) - log p(token) as the advantage, as in
# section 3 of the paper and TRL's `sampled_token` (the paper's other form sums over the most likely
# tokens). The teacher has the weights of before the iteration, without a moving average.
@dataclass(frozen=True)
class Sdpo(Algorithm):
    """The model with a successful rollout of the group in its prompt teaches the model without
    one, token by token."""

    name: str = "sdpo"
    success: float = field(default=1.0, metadata=number(0))
    """The reward from which on a rollout is a lesson for the others of its group."""
    bound: float = field(default=5.0, metadata=number(0))
    """The most that teacher and policy count as apart in the log-probability of a token."""

    source: ClassVar[str] = "Hübotter et al. 2026, arXiv 2601.20802"
    heeds: ClassVar[frozenset[str]] = frozenset({"clip_low", "clip_high", "aggregate"})
    checklists: ClassVar[bool] = False
    taught: ClassVar[bool] = True

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if recipe.hinted:
            raise UserError(
                f"trainer.hinted={recipe.hinted} gives the policy hints, and trainer.algorithm="
                f"{self.name} gives the teacher lessons; allowed there: hinted=0. Change "
                "`trainer.hinted` or `trainer.algorithm`."
            )

    def lessons(
        self,
        group: Sequence[Trajectory],
        rewards: Sequence[float],
        reference: Callable[[str], Sequence[Message]],
    ) -> list[str]:
        places = [n for n, reward in enumerate(rewards) if reward >= self.success]
        order = sorted(places, key=lambda n: -rewards[n])
        best = [next((m for m in order if m != n), None) for n in range(len(group))]
        return ["" if m is None else lesson(group[m].messages) for m in best]

    def loss(self, batch: Batch, recipe: Recipe) -> Each:
        assert batch.teacher is not None
        advantages = (batch.teacher - batch.old).detach().clamp(-self.bound, self.bound)
        return clipped(batch.ratio, advantages, recipe.clip_low, recipe.clip_high)


@dataclass(frozen=True)
class Opsd(Sdpo):
    """The model with the task's reference in its prompt teaches the model without it, token by
    token."""

    name: str = "opsd"

    source: ClassVar[str] = "Zhao et al. 2026, github.com/siyan-zhao/OPSD"
    references: ClassVar[bool] = True

    def lessons(
        self,
        group: Sequence[Trajectory],
        rewards: Sequence[float],
        reference: Callable[[str], Sequence[Message]],
    ) -> list[str]:
        return [lesson(reference(group[0].task))] * len(group)


def lesson(messages: Sequence[Message]) -> str:
    """What the agent did in a conversation, as a text for its prompt."""
    said: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            said += [f"{call['name']} {call['arguments']}" for call in calls]
            said += [message["content"]] if message.get("content") else []
    return f"A correct solution: {'; '.join(said)}"
