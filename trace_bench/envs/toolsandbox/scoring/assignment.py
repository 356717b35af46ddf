"""The score of an episode: the best assignment of milestones to messages.

Milestones are matched to messages so that along every edge of their DAG the messages do not
decrease, which is the same as non-decreasing messages over some topological order. The assignment
with the largest weighted sum is found exactly by dynamic programming over the messages; its states
are the sets of milestones already placed, so a chain of n has n + 1 of them. Milestones that
others refer to ("since") add the snapshot at which they were placed to the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trace_bench.core.types import Milestone as Outcome
from trace_bench.core.types import Score
from trace_bench.envs.toolsandbox.databases import LogEntry, Snapshot
from trace_bench.envs.toolsandbox.scoring.goals import Goal, GoalMilestone
from trace_bench.envs.toolsandbox.scoring.similarity import Similarities

_PERFECT = 1 - 1e-6
_TIE = 1e-12  # sums that differ by less are equal

# A state: the placed milestones as a bit set, and the snapshots of those referred to, in order.
State = tuple[int, tuple[int, ...]]
# How it was reached: weighted sum, and the chain of (milestone, message, score) placements.
Chain = tuple[int, int, float, Any]
Placed = tuple[float, int | None]  # similarity, and the message at which it is reached


def score_episode(
    milestones: Goal,
    minefields: Goal,
    log: Sequence[LogEntry],
    snapshots: Sequence[Snapshot],
    first: int = 1,
) -> Score:
    """The scenario score in [0, 1]: weighted mean over milestones, 0 once a minefield is hit; an
    empty graph counts as 1. `log[first]` is the first message that can be matched.

    The place of a milestone or minefield is the earliest index into the log that the best
    assignment allows, None where nothing matched. A minefield is hit by any similarity above 0.
    """
    similarities = Similarities(log, snapshots)
    mean, reached = _match(milestones, similarities, first)
    mined, hits = _match(minefields, similarities, first)
    similarity = 1.0 if mean is None else mean
    if mined is not None and mined > 0.0:
        similarity = 0.0
    return Score(
        similarity,
        similarity >= _PERFECT,
        milestones=_outcomes(milestones, reached, lambda found: found >= _PERFECT),
        minefields=_outcomes(minefields, hits, lambda found: found > 0.0),
    )


def _outcomes(
    goal: Goal, found: Sequence[Placed], hit: Callable[[float], bool]
) -> tuple[Outcome, ...]:
    """What became of each milestone."""
    return tuple(
        Outcome(wanted.name, similarity, hit(similarity), place, wanted.tells)
        for wanted, (similarity, place) in zip(goal.milestones, found, strict=True)
    )


def _match(goal: Goal, similarities: Similarities, first: int) -> tuple[float | None, list[Placed]]:
    """The weighted mean over the milestones, None where the graph is empty, and their places."""
    found: list[Placed] = [(0.0, None)] * len(goal.milestones)
    if not goal.linked:
        return None, found
    total, chain = _best(goal, similarities, first)
    while chain is not None:
        milestone, message, score, chain = chain
        if score > 0.0:
            found[milestone] = (score, message)
    return min(1.0, total / sum(goal.weights)), found


def _best(goal: Goal, similarities: Similarities, first: int) -> tuple[float, Chain | None]:
    """The largest weighted sum and its placements. Of equal sums the one found first stays, so
    milestones are matched as early as they can be."""
    count = len(goal.milestones)
    messages = range(first, len(similarities.log))
    referred = _referred(goal)
    score = _Lookup(goal, similarities, messages, referred)
    states: dict[State, tuple[float, Chain | None]] = {(0, (0,) * len(referred)): (0.0, None)}
    for message in messages:
        # A state made at this message may grow at the same message: the messages need not rise.
        fresh = list(states)
        while fresh:
            grown: dict[State, None] = {}
            for state in fresh:
                placed, moments = state
                total, chain = states[state]
                left = goal.linked & ~placed
                for i in range(count):
                    if not left >> i & 1 or goal.before[i] & ~placed:
                        continue
                    value = score(i, message, moments)
                    target = (placed | 1 << i, score.moments(i, message, moments))
                    reached = total + goal.weights[i] * value
                    if target not in states or reached > states[target][0] + _TIE:
                        states[target] = (reached, (i, message, value, chain))
                        grown[target] = None
            fresh = list(grown)
    complete = (entry for (placed, _), entry in states.items() if placed == goal.linked)
    return max(complete, key=lambda entry: entry[0])


def _referred(goal: Goal) -> list[int]:
    return sorted({since for m in goal.milestones for since in _references(m)})


def _references(milestone: GoalMilestone) -> list[int]:
    """The earlier milestones that one refers to."""
    found = [c.since for c in milestone.constraints] + [g.since for g in milestone.guards]
    return [since for since in found if since is not None]


class _Lookup:
    """Scores of milestones at messages; those that refer to no other come from a table."""

    def __init__(
        self, goal: Goal, similarities: Similarities, messages: range, referred: list[int]
    ) -> None:
        self._goal = goal
        self._similarities = similarities
        self._slots = {milestone: i for i, milestone in enumerate(referred)}
        self._table: list[dict[int, float] | None] = [
            None if _references(m) else {j: similarities.milestone(m, j, {}) for j in messages}
            for m in goal.milestones
        ]

    def __call__(self, i: int, message: int, moments: tuple[int, ...]) -> float:
        table = self._table[i]
        if table is not None:
            return table[message]
        at = {milestone: moments[slot] for milestone, slot in self._slots.items()}
        return self._similarities.milestone(self._goal.milestones[i], message, at)

    def moments(self, i: int, message: int, moments: tuple[int, ...]) -> tuple[int, ...]:
        """The snapshots of the milestones referred to, once `i` is placed at `message`."""
        slot = self._slots.get(i)
        if slot is None:
            return moments
        snapshot = self._similarities.log[message].snapshot
        return (*moments[:slot], snapshot, *moments[slot + 1 :])
