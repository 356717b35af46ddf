"""The health of a run: what was lost, cut off or unreadable, whether training learned from it, and
whether its tracker has failed.

It is in summary.json under `health` and the last lines of the closing table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trace_bench.core.types import StopReason, Trajectory
from trace_bench.runner.outcomes import Outcome


@dataclass
class EpisodeCounts:
    """Counts of episodes: how many, lost ones by boundary, those cut off by the context and by the
    limit of turns; of turns: how many, and those with a tool call that cannot be read; and of the
    checklist items in the scores."""

    episodes: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    context: int = 0
    turn_limit: int = 0
    turns: int = 0
    malformed: int = 0
    items: int = 0

    def played(self, trajectories: Iterable[Trajectory]) -> None:
        """Adds trajectories."""
        for t in trajectories:
            self._add(None if t.failure is None else t.failure.boundary.value, t.stop.value)
            self.turns += len(t.turns)
            self.malformed += sum(turn.malformed is not None for turn in t.turns)
            self.items += 0 if t.score is None else len(t.score.checks)

    def evaluated(self, outcomes: Iterable[Outcome]) -> None:
        """Adds the last attempts at held-out episodes."""
        for o in outcomes:
            self._add((o.error or "").partition(":")[0] if o.lost else None, o.stop)
            self.turns += o.turns
            self.malformed += o.malformed
            self.items += o.items

    def _add(self, boundary: str | None, stop: str) -> None:
        self.episodes += 1
        if boundary is not None:
            self.lost[boundary] += 1
        self.context += stop == StopReason.CONTEXT_LIMIT
        self.turn_limit += stop == StopReason.TURN_LIMIT

    def data(self) -> dict[str, Any]:
        return {**vars(self), "lost": dict(sorted(self.lost.items()))}


PHASES = ("training", "fine-tuning")
"""The phases whose lines of metrics are about training."""


@dataclass
class TrainingCounts:
    """Sums over the metrics of training iterations: groups of rollouts, those of them without an
    advantage, optimizer steps. None: no trainer has reported it. `apart`: the largest of the
    iterations' mean differences between sampler and trainer, in log-probability; `alarms`: the
    iterations in which it was more than the trainer allows. `update_norm`: the largest norm of a
    layer's update so far."""

    groups: int | None = None
    constant: int | None = None
    steps: int | None = None
    apart: float | None = None
    alarms: int = 0
    update_norm: float | None = None

    def log(self, values: Mapping[str, Any]) -> None:
        """Adds one line of metrics with `groups`, `constant_share` (of the groups), `steps`,
        `logprob_difference_mean`, `logprob_alarm` or `update_norm`; lines of other phases are left
        out."""
        if values.get("phase") not in PHASES:
            return
        groups, share, steps = (values.get(k) for k in ("groups", "constant_share", "steps"))
        if (apart := values.get("logprob_difference_mean")) is not None:
            self.apart = max(self.apart or 0.0, apart)
        self.alarms += bool(values.get("logprob_alarm"))
        if (norm := values.get("update_norm")) is not None:
            self.update_norm = max(self.update_norm or 0.0, norm)
        if groups is not None and share is not None:
            self.groups = (self.groups or 0) + groups
            self.constant = (self.constant or 0) + round(share * groups)
        if steps is not None:
            self.steps = (self.steps or 0) + steps


def equal_trials(outcomes: Sequence[Outcome]) -> int | None:
    """The number of trials of each task if there are several and none differs from the first in
    score, turns or tokens; else None."""
    by_task: dict[str, list[tuple[Any, ...]]] = {}
    for o in outcomes:
        by_task.setdefault(o.task, []).append((o.score, o.stop, o.turns, o.tokens))
    trials = {len(found) for found in by_task.values()}
    if trials in (set(), {1}):
        return None
    same = all(one == found[0] for found in by_task.values() for one in found)
    return max(trials) if same else None


def lost(summary: Mapping[str, Any]) -> int:
    """How many held-out episodes of a finished run were lost; 0 for summaries without a health."""
    health = summary.get("health")
    return 0 if health is None else sum(health["evaluation"]["lost"].values())
