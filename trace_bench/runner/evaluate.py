"""Held-out evaluation: what an AgentSpec is worth, and what its routing costs.

Nothing here is charged to a budget and nothing here is seen by a method. A line per agent, task and
trial is written to a JSONL file; the lines of a finished evaluation are answered from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Policy, Suite
from trace_bench.core.store import Lines, stable_seed
from trace_bench.core.types import AgentSpec, Task, Trajectory
from trace_bench.play.rollouts import play
from trace_bench.runner.progress import Progress


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
class Plan:
    """The tasks of an evaluation and how often each is played."""

    tasks: tuple[Task, ...]
    trials: int = 1

    @property
    def episodes(self) -> list[tuple[Task, int]]:
        return [(task, trial) for trial in range(self.trials) for task in self.tasks]


class Evaluator:
    """Plays agents on held-out tasks and writes `path`; trajectories of the calls that ask for it
    go to `trajectories`."""

    def __init__(
        self,
        path: Path,
        *,
        suite: Suite,
        seed: int,
        temperature: float,
        max_turns: int,
        max_tokens: int,
        retries: int,
        progress: Progress,
        trajectories: Path | None = None,
    ) -> None:
        self.path = path
        self._suite = suite
        self._seed = seed
        self._retries = retries
        self._how = {"temperature": temperature, "max_turns": max_turns, "max_tokens": max_tokens}
        self._progress = progress
        self._lines = Lines(path)
        self._found: dict[str, dict[tuple[str, int], Outcome]] = {}
        for number, line in enumerate(self._lines.existing, start=1):
            outcome = _outcome(line, path, number)
            self._remember(outcome)
        self._lines.existing.clear()
        self._kept = Lines(trajectories) if trajectories is not None else None
        self._kept_keys = _keys(self._kept)

    def evaluate(
        self,
        label: str,
        agent: AgentSpec,
        plan: Plan,
        policy: Policy,
        *,
        route: Sequence[str | None] | None = None,
        keep: bool = False,
    ) -> list[Outcome]:
        """Outcomes in the plan's order. The seeds depend on task and trial only, so that agents
        are compared on the same draws. With `keep` the trajectories are stored too."""
        found = self._found.setdefault(label, {})
        everything = range(len(plan.episodes))
        keys = [(task.id, trial) for task, trial in plan.episodes]
        missing = [i for i in everything if keys[i] not in found]
        if missing:
            # Played beside others, an episode may be rounded otherwise: all of them or none.
            which = everything if getattr(policy, "repeatable", True) else missing
            self._play(label, agent, plan, policy, route, keep, which, 0)
        for attempt in range(1, self._retries + 1):
            lost = [i for i in everything if found[keys[i]].lost]
            if lost := [i for i in lost if found[keys[i]].attempt < attempt]:
                self._play(label, agent, plan, policy, route, keep, lost, attempt)
        return [found[key] for key in keys]

    def copy(self, label: str, source: Sequence[Outcome]) -> list[Outcome]:
        """The same outcomes under another label, for an agent that is the same agent."""
        found = self._found.setdefault(label, {})
        for outcome in source:
            if (outcome.task, outcome.trial) not in found:
                self._write(replace(outcome, agent=label))
        return [found[o.task, o.trial] for o in source]

    def everything(self) -> list[Outcome]:
        """The outcomes of all agents."""
        return [outcome for found in self._found.values() for outcome in found.values()]

    @property
    def count(self) -> int:
        """Episodes in the file, of all agents, without the attempts that were lost and repeated."""
        return sum(map(len, self._found.values()))

    def close(self) -> None:
        self._lines.close()
        if self._kept is not None:
            self._kept.close()

    def _play(
        self,
        label: str,
        agent: AgentSpec,
        plan: Plan,
        policy: Policy,
        route: Sequence[str | None] | None,
        keep: bool,
        which: Sequence[int],
        attempt: int,
    ) -> None:
        """Plays the episodes `which` of the plan."""
        episodes = [plan.episodes[i] for i in which]
        call = f"evaluation/{label}" + (f"/attempt{attempt}" if attempt else "")
        found = self._found[label]
        self._progress.phase(f"evaluation of {label}", total=len(episodes))

        def ended(index: int, trajectory: Trajectory) -> None:
            trial = episodes[index][1]
            kept = (call, which[index])
            if keep and self._kept is not None and kept not in self._kept_keys:
                self._kept.append({"call": kept[0], "index": kept[1], "trajectory": trajectory})
                self._kept_keys.add(kept)
            old = found.get((trajectory.task, trial))
            if old is None or old.attempt < attempt:
                self._write(_from_trajectory(label, trial, trajectory, attempt))
            score = trajectory.score
            self._progress.episode(None if score is None else score.similarity, charged=False)

        play(
            policy,
            self._suite,
            agent,
            [task for task, _ in episodes],
            [stable_seed(self._seed, "evaluation", task.id, trial) for task, trial in episodes],
            route=None if route is None else [route[i] for i in which],
            on_episode=ended,
            **self._how,  # type: ignore[arg-type]
        )

    def _write(self, outcome: Outcome) -> None:
        self._lines.append(outcome)
        self._remember(outcome)

    def _remember(self, outcome: Outcome) -> None:
        """The last attempt counts."""
        self._found.setdefault(outcome.agent, {})[outcome.task, outcome.trial] = outcome


@dataclass(frozen=True)
class Routing:
    """What the choice of adapters is worth, from every adapter's outcome on every task."""

    oracle: tuple[Outcome, ...]  # per task and trial the best of base model and adapters
    single: str  # the adapter (or "base model") that is best on all tasks alone
    single_outcomes: tuple[Outcome, ...]
    agreement: float  # share of tasks on which the router's choice scores as well as the oracle
    decisive: int  # tasks on which the choices differ in score
    agreement_decisive: float | None  # the same among those; None when there are none


def routing(choices: Mapping[str | None, Sequence[Outcome]], final: Sequence[Outcome]) -> Routing:
    """`choices[name][i]` is adapter `name` (None: base model) on the i-th episode of the plan,
    `final[i]` the routed agent's outcome there. The base model wins ties, then the earlier adapter.

    The oracle looks at the scores that it is judged by: it is an upper bound, not a method.
    """
    names = sorted(choices, key=lambda name: name is not None)
    best = [max(names, key=lambda n: _rank(choices[n][i])) for i in range(len(final))]
    oracle = tuple(choices[name][i] for i, name in enumerate(best))
    adapters = [n for n in names if n is not None] or names
    single = max(adapters, key=lambda n: _total(choices[n]))
    differ = [i for i in range(len(final)) if len({_rank(choices[n][i]) for n in names}) > 1]
    agree = [
        _rank(choices.get(o.adapter, final)[i]) == _rank(oracle[i]) for i, o in enumerate(final)
    ]
    return Routing(
        oracle=oracle,
        single=single or "base model",
        single_outcomes=tuple(choices[single]),
        agreement=sum(agree) / len(agree) if agree else 1.0,
        decisive=len(differ),
        agreement_decisive=sum(agree[i] for i in differ) / len(differ) if differ else None,
    )


def only(agent: AgentSpec, adapter: str) -> AgentSpec:
    """The agent with one adapter for all tasks."""
    kept = tuple(a for a in agent.adapters if a.name == adapter)
    return replace(agent, version=f"{agent.version}/{adapter}", adapters=kept, router=None)


def _rank(outcome: Outcome) -> tuple[float, float]:
    return (outcome.success, outcome.similarity)


def _total(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    return (sum(o.success for o in outcomes), sum(o.similarity for o in outcomes))


def _from_trajectory(label: str, trial: int, trajectory: Trajectory, attempt: int) -> Outcome:
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
    )


def _outcome(line: Mapping[str, Any], path: Path, number: int) -> Outcome:
    try:
        return Outcome(**line)
    except TypeError as error:
        raise UserError(
            f"{path}, line {number} is not an evaluation line ({error}). Remove that line (its "
            "agent is then evaluated again), or change the setting `run_dir`."
        ) from error


def _keys(lines: Lines | None) -> set[tuple[str, int]]:
    if lines is None:
        return set()
    keys = {(line["call"], line["index"]) for line in lines.existing}
    lines.existing.clear()
    return keys
