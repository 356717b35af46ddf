"""Held-out evaluation of an AgentSpec, not charged to a budget nor visible to a method. A finished
evaluation is answered from its file, one line per agent, task and trial."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trace_bench.core.protocols import Policy
from trace_bench.core.store import Lines, stable_seed
from trace_bench.core.types import AgentSpec, Figures, Outcome, Task, Trajectory
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.runner.ledger import EpisodeFile, check
from trace_bench.runner.progress import Progress
from trace_bench.settings.schema import Settings


def outcome_of(label: str, trial: int, trajectory: Trajectory, attempt: int) -> Outcome:
    score, failure = trajectory.score, trajectory.failure
    return Outcome(
        agent=label,
        version=trajectory.agent,
        adapter=trajectory.adapter,
        task=trajectory.task,
        trial=trial,
        score=None if score is None else Figures(score.success, score.similarity),
        stop=trajectory.stop,
        error=None if failure is None else str(failure),
        tokens=trajectory.tokens,
        attempt=attempt,
        turns=len(trajectory.turns),
        malformed=sum(turn.malformed is not None for turn in trajectory.turns),
    )


@dataclass(eq=False)
class Evaluator:
    """Runs agents on held-out tasks and writes outcomes to `path`, and trajectories, on request,
    beside it. A lost episode is run again, up to `evaluation.retries` times, and once by every
    later start."""

    path: Path
    player: Player
    settings: Settings
    progress: Progress

    def __post_init__(self) -> None:
        self._lines = Lines(self.path, Outcome)
        self._outcomes: dict[str, dict[tuple[str, int], Outcome]] = {}
        for outcome in self._lines:
            self._remember(outcome)
        # Lost by an earlier start: this one makes one more attempt at each.
        self._lost = {(o.agent, o.task, o.trial) for o in self.everything() if o.lost}
        self._kept = EpisodeFile(self.path.with_stem(f"{self.path.stem}_trajectories"))

    def evaluate(
        self,
        label: str,
        agent: AgentSpec,
        tasks: Sequence[Task],
        *,
        trials: int = 1,
        policy: Policy | None = None,
        keep: bool = False,
    ) -> list[Outcome]:
        """Outcomes, trial by trial in the order of the tasks. Seeds depend on task and trial only,
        so that agents meet the same draws. `keep`: also store the trajectories; `policy`: acts in
        place of the run's, and may lose any number. Raises UserError if too many are lost."""
        player = self.player if policy is None else replace(self.player, policy=policy)
        episodes = [(task, trial) for trial in range(trials) for task in tasks]
        keys = [(task.id, trial) for task, trial in episodes]
        job = _OneAgent(label, agent, episodes, player, keep)
        lines = self._outcomes.setdefault(label, {})
        self._play(job, range(len(keys)), {i for i, key in enumerate(keys) if key in lines})
        while again := [i for i, key in enumerate(keys) if self._plays_again(lines[key])]:
            self._play(job, again)
        outcomes = [lines[key] for key in keys]
        if policy is None:
            causes = [f"{o.error} ({o.task})" for o in outcomes if o.lost]
            most, where = self.settings.max_lost, self.player.faults.where
            check(f"evaluation of {label}", causes, len(outcomes), most, where)
        return outcomes

    def copy(self, label: str, source: Sequence[Outcome]) -> list[Outcome]:
        """Copies outcomes to another label, for an identical agent."""
        lines = self._outcomes.setdefault(label, {})
        for outcome in source:
            there = lines.get((outcome.task, outcome.trial))
            if there is None or (there.lost and there.attempt < outcome.attempt):
                self._write(replace(outcome, agent=label))
        return [lines[o.task, o.trial] for o in source]

    def everything(self) -> list[Outcome]:
        """The last attempt at each episode of the file, of all agents."""
        return [outcome for lines in self._outcomes.values() for outcome in lines.values()]

    def close(self) -> None:
        self._lines.close()
        self._kept.close()

    def _plays_again(self, outcome: Outcome) -> bool:
        earlier = (outcome.agent, outcome.task, outcome.trial) in self._lost
        return outcome.lost and (earlier or outcome.attempt < self.settings.evaluation.retries)

    def _play(self, job: _OneAgent, which: Sequence[int], there: Collection[int] = ()) -> None:
        """Runs those of the episodes `which` that are not `there`."""
        if len(there) == len(which):
            return
        episodes = [job.episodes[i] for i in which]
        self.progress.phase(f"evaluation of {job.label}", total=len(which) - len(there))

        def ended(place: int, trajectory: Trajectory) -> None:
            (task, trial), lines = episodes[place], self._outcomes[job.label]
            before = lines.get((task.id, trial))
            attempt = 0 if before is None else before.attempt + 1
            if job.keep:
                call = f"evaluation/{job.label}" + (f"/attempt{attempt}" if attempt else "")
                self._kept.add(call, which[place], trajectory)
            self._lost.discard((job.label, task.id, trial))
            self._write(outcome_of(job.label, trial, trajectory, attempt))
            score = trajectory.score
            self.progress.episode(None if score is None else score.similarity, charged=False)

        seed, temperature = self.settings.seed, self.settings.policy.eval_temperature
        seeds = tuple(stable_seed(seed, "evaluation", t.id, trial) for t, trial in episodes)
        batch = EpisodeBatch(job.agent, tuple(task for task, _ in episodes), seeds, temperature)
        job.player.complete(batch, [n for n, i in enumerate(which) if i in there], ended)

    def _write(self, outcome: Outcome) -> None:
        self._lines.append(outcome)
        self._remember(outcome)

    def _remember(self, outcome: Outcome) -> None:
        """The last attempt counts."""
        self._outcomes.setdefault(outcome.agent, {})[outcome.task, outcome.trial] = outcome


@dataclass(frozen=True)
class _OneAgent:
    label: str
    agent: AgentSpec
    episodes: Sequence[tuple[Task, int]]  # with the trial
    player: Player
    keep: bool
