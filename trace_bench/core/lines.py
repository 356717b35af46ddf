"""The lines of a run folder's files as values. `store.read_lines` and `store.Lines` read them."""

from __future__ import annotations

from dataclasses import dataclass

from trace_bench.core.types import Count, Purpose, Seed, Share, StopReason, Trajectory


@dataclass(frozen=True)
class Stored:
    """A line of trajectories.jsonl and evaluation_trajectories.jsonl: an episode, and which one of
    which call of `Lab.rollouts` (or of the evaluation) it is."""

    call: str
    index: Count
    trajectory: Trajectory


@dataclass(frozen=True)
class Entry:
    """A line of ledger.jsonl. `similarity`, `success`: None when the infrastructure failed."""

    call: str
    index: Count
    purpose: Purpose
    task: str
    seed: Seed
    agent: str  # AgentSpec.version
    adapter: str | None  # versioned name of the adapter that acted; None is the base model
    similarity: Share | None
    success: bool | None
    tokens: Count
    turns: Count
    stop: StopReason
    error: str | None = None  # "boundary: message"


@dataclass(frozen=True)
class Figures:
    """What of a score is in a line of an evaluation."""

    success: bool
    similarity: Share


@dataclass(frozen=True)
class Outcome:
    """A line of evaluation.jsonl, curve.jsonl and routing.jsonl: one held-out episode. `score` is
    None when the infrastructure failed."""

    agent: str  # label: base, final, idle, random, reference, adapter:<name>
    version: str  # AgentSpec.version
    adapter: str | None  # the adapter that acted
    task: str
    trial: Count
    score: Figures | None
    stop: StopReason
    error: str | None
    tokens: Count
    attempt: Count = 0  # how often the infrastructure had lost this episode before
    turns: Count = 0  # of the agent
    malformed: Count = 0  # of those, with a tool call that cannot be read
    items: Count = 0  # of the checklist in the score

    @property
    def lost(self) -> bool:
        return self.score is None

    @property
    def success(self) -> float:
        return float(self.score.success) if self.score else 0.0

    @property
    def similarity(self) -> float:
        return self.score.similarity if self.score else 0.0
