"""GiGPO (Feng et al. 2025, arXiv 2505.10978, section 4): two levels. To the advantage of the whole
trajectory within its group comes that of a step among all steps of the group that began with the
same observation (anchor states), by the discounted return from there on.

The reward comes at the end of an episode. A step that no other shares its observation with has no
advantage of its own, as in the authors' `gigpo/core_gigpo.py` (langfengQ/verl-agent). Each
trajectory counts once in its group's mean, as in equation 3; their batches hold a row for each
step, and by default a trajectory counts there once for each of its steps. Observations are equal
if their texts are, as there. A group in which all rewards are
equal is dropped, as everywhere here, while theirs would still prefer the shorter episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import SAME, Advantages, Episodes

if TYPE_CHECKING:
    from torch import Tensor


GAMMA = 0.95  # the discount of the reward for each step before the last


@dataclass(frozen=True)
class Gigpo(Algorithm):
    """GRPO, and beside it a step's advantage among those with the same observation before."""

    name: str = "gigpo"

    source: ClassVar[str] = "Feng et al. 2025, arXiv 2505.10978"
    observations: ClassVar[bool] = True
    checklists: ClassVar[bool] = False

    def advantages(self, episodes: Episodes) -> Advantages:
        import torch

        whole = super().advantages(episodes)
        steps = [
            [float(value)] * len(t) for value, t in zip(whole.values, episodes.turns, strict=True)
        ]
        for places in anchors(episodes, whole.trained.tolist()):
            returns = torch.stack([discounted(episodes, n, step) for n, step in places])
            if len(returns) > 1 and float(returns.max() - returns.min()) > SAME:
                added = self.of_group(returns)
                for (n, step), value in zip(places, added.tolist(), strict=True):
                    steps[n][step] += value
        tokens = tuple(
            torch.tensor(values).repeat_interleave(torch.tensor(lengths, dtype=torch.long))
            for values, lengths in zip(steps, episodes.turns, strict=True)
        )
        return replace(whole, tokens=tokens)


def discounted(episodes: Episodes, n: int, step: int) -> Tensor:
    """The reward of an episode as the return of one of its steps."""
    left = len(episodes.turns[n]) - 1 - step
    return episodes.rewards[n].double() * GAMMA**left


def anchors(episodes: Episodes, trained: list[bool]) -> Iterator[list[tuple[int, int]]]:
    """(episode, step) of the steps of a group that began with the same observation."""
    places: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for n, group in enumerate(episodes.group.tolist()):
        for step, text in enumerate(episodes.seen[n] if trained[n] else ()):
            places.setdefault((group, text), []).append((n, step))
    yield from places.values()
