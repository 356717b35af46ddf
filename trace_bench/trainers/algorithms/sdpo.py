"""SDPO and OPSD: the model is the teacher of its own tokens. Each rollout's tokens are read again
by the same model with a lesson in the prompt, and the policy moves towards what it says then.
With SDPO (Hübotter et al. 2026, arXiv 2601.20802) the lesson is the best other rollout of the
group, if that succeeded; with OPSD (Zhao et al., github.com/siyan-zhao/OPSD) the task's reference.

The divergence is KL(policy, teacher) at each token, estimated by the token that was sampled: its
gradient is that of a policy gradient with log q(token) - log p(token) as the advantage, as in
section 3 of the paper and TRL's `sampled_token` (the paper's other form sums over the most likely
tokens). The teacher has the weights of before the iteration, without a moving average."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from trace_bench.core.checked import number
from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import Algorithm, Batch, Each, clipped

if TYPE_CHECKING:
    from trace_bench.core.types import Message, Trajectory
    from trace_bench.trainers.settings import Recipe


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
