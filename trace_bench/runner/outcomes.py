"""The outcomes of an evaluation: a line per agent, task and trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trace_bench.core.store import damaged
from trace_bench.core.types import AdapterRef, AgentSpec, Task, Trajectory


@dataclass(frozen=True)
class Outcome:
    """One held-out episode. `score` is None when the infrastructure failed."""

    agent: str  # label: base, final, idle, random, reference, adapter:<name>
    version: str  # AgentSpec.version
    adapter: str | None  # the adapter that acted
    task: str
    trial: int
    score: Mapping[str, Any] | None  # {"success": bool, "similarity": float}
    stop: str
    error: str | None
    tokens: int
    attempt: int = 0  # how often the infrastructure had lost this episode before
    turns: int = 0  # of the agent
    malformed: int = 0  # of those, with a tool call that cannot be read
    items: int = 0  # of the checklist in the score

    @property
    def lost(self) -> bool:
        return self.score is None

    @property
    def success(self) -> float:
        return float(self.score["success"]) if self.score else 0.0

    @property
    def similarity(self) -> float:
        return float(self.score["similarity"]) if self.score else 0.0


@dataclass(frozen=True)
class EvaluationPlan:
    """The tasks of an evaluation and the number of trials of each."""

    tasks: tuple[Task, ...]
    trials: int = 1

    @cached_property
    def episodes(self) -> list[tuple[Task, int]]:
        return [(task, trial) for trial in range(self.trials) for task in self.tasks]

    @cached_property
    def keys(self) -> list[tuple[str, int]]:
        return [(task.id, trial) for task, trial in self.episodes]


Place = tuple[str, int]
"""(call, index) of a kept trajectory."""

_Act = tuple[str, str, AdapterRef | None, str, int]


@dataclass
class Known:
    """The run's evaluated episodes, by everything that an episode depends on: model, prompt, the
    adapter that acts, task and trial. Shared by evaluators with the same temperature and limits."""

    _found: dict[_Act, tuple[Outcome, Place | None]] = field(default_factory=dict)

    def add(self, agent: AgentSpec, outcome: Outcome, place: Place | None) -> None:
        """Adds an outcome. `place`: where its trajectory is stored; None if it is not."""
        act = _act(agent, outcome.adapter, outcome.task, outcome.trial)
        if act is not None and not outcome.lost:
            self._found.setdefault(act, (outcome, place))

    def find(
        self, agent: AgentSpec, adapter: str | None, task: str, trial: int
    ) -> tuple[Outcome, Place | None] | None:
        act = _act(agent, adapter, task, trial)
        return None if act is None else self._found.get(act)


def _act(agent: AgentSpec, adapter: str | None, task: str, trial: int) -> _Act | None:
    """The key of an episode; None for a weighted sum of adapters."""
    ref = None
    if adapter is not None:
        ref = next((a for a in agent.adapters if a.name == adapter), None)
        if ref is None:
            return None
    return agent.model, agent.prompt, ref, task, trial


def outcome_of(label: str, trial: int, trajectory: Trajectory, attempt: int) -> Outcome:
    """The line of an episode."""
    score, failure = trajectory.score, trajectory.failure
    return Outcome(
        agent=label,
        version=trajectory.agent,
        adapter=trajectory.adapter,
        task=trajectory.task,
        trial=trial,
        score=None if score is None else {"success": score.success, "similarity": score.similarity},
        stop=trajectory.stop.value,
        error=None if failure is None else f"{failure.boundary.value}: {failure.error}",
        tokens=trajectory.tokens,
        attempt=attempt,
        turns=len(trajectory.turns),
        malformed=sum(turn.malformed is not None for turn in trajectory.turns),
        items=0 if score is None else len(score.checks),
    )


def read_outcome(line: Mapping[str, Any], path: Path, number: int) -> Outcome:
    """A line as it is read back. Raises UserError."""
    try:
        outcome = Outcome(**line)
        _ = outcome.success, outcome.similarity  # a score must hold both
        return outcome
    except (TypeError, LookupError, ValueError) as error:
        raise damaged(path, number, f"no evaluation line: {error!r}") from error
