"""Which adapters learn: shares of the training that follow learning progress (`split=progress`).

The first half of the training rollouts is split equally. The second half goes to the adapters that
are still learning: half of it in equal parts, half in proportion to how much the mean reward rose
within the first. An adapter whose latest groups are mostly constant is saturated and gets nothing
more; when all are, nothing more is trained. Learning progress as a measure of where to train is
that of teacher-student curricula (Matiisen et al. 2017, arXiv 1707.00183).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from trace_bench.core.types import Task, Trajectory

SATURATED = 0.6  # share of constant groups (ours: seen where rewards no longer rise)
SAME = 1e-8  # rewards closer than this are equal


class Progress:
    """The rewards of one adapter's groups, in order. `hear` is given to `Lab.listening`."""

    def __init__(self, reward: str) -> None:
        self.reward = reward
        self.groups: list[list[float]] = []

    def hear(self, tasks: Sequence[Task], played: Sequence[Trajectory]) -> None:
        """The episodes of a call; those of one group lie side by side."""
        both = list(zip(tasks, played, strict=True))
        for _, group in groupby(both, key=lambda pair: pair[0].id):
            scores = [t.score for _, t in group if t.score is not None and t.failure is None]
            if scores:
                self.groups.append([float(getattr(s, self.reward)) for s in scores])

    def gain(self) -> float:
        """Mean reward of the later half of the groups, less that of the earlier half; not below
        0."""
        half = len(self.groups) // 2
        return max(0.0, _mean(self.groups[half:]) - _mean(self.groups[:half])) if half else 0.0

    def saturated(self) -> bool:
        """Whether most of the later half of the groups is constant."""
        later = self.groups[len(self.groups) // 2 :]
        constant = sum(max(g) - min(g) <= SAME for g in later)
        return bool(later) and constant > SATURATED * len(later)


def weights(found: Sequence[Progress]) -> list[float]:
    """The shares of the second half of the training, which add up to 1 or, when all are saturated,
    to 0."""
    learning = [not p.saturated() for p in found]
    gains = [p.gain() if on else 0.0 for p, on in zip(found, learning, strict=True)]
    equal, total = sum(learning), sum(gains)
    return [
        (0.5 / equal + 0.5 * (gain / total if total else 1 / equal)) if on else 0.0
        for gain, on in zip(gains, learning, strict=True)
    ]


def _mean(groups: Sequence[Sequence[float]]) -> float:
    rewards = [r for group in groups for r in group]
    return sum(rewards) / len(rewards)
