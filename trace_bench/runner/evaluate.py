"""Held-out evaluation of an AgentSpec, not charged to a budget nor visible to a method. A finished
evaluation is answered from its file, one line per agent, task and trial.

An episode depends only on the model, the prompt, the adapter that acts, the task and the trial. So
with a repeatable policy, an agent's line is copied from another agent's if both act alike: for the
routed agent where its router chooses the base model, for an adapter alone where the router chose
it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from trace_bench.core.protocols import Policy
from trace_bench.core.store import Lines, stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Figures, Outcome, Step, Task, Trajectory
from trace_bench.play.rollouts import Choice, EpisodeBatch, Player
from trace_bench.play.steps import opened, with_guidance
from trace_bench.policies.routing.merge import Mixture
from trace_bench.policies.routing.router import make_router
from trace_bench.runner.ledger import EpisodeFile, Spot, check
from trace_bench.runner.progress import Progress


@dataclass(frozen=True)
class Terms:
    """What all evaluations of a run have in common. `retries`: how often a lost episode is run
    again; `max_lost`: the share of an evaluation's episodes that may be lost."""

    seed: int = 0
    temperature: float = 0.0
    retries: int = 1
    max_lost: float = 0.5


@dataclass(frozen=True)
class EvaluationPlan:
    tasks: tuple[Task, ...]
    trials: int = 1

    @cached_property
    def episodes(self) -> list[tuple[Task, int]]:
        return [(task, trial) for trial in range(self.trials) for task in self.tasks]

    @cached_property
    def keys(self) -> list[tuple[str, int]]:
        return [(task.id, trial) for task, trial in self.episodes]


Act = tuple[str, str, str | None, tuple[AdapterRef, ...], str, int]
KnownOutcomes = dict[Act | None, tuple[Outcome, Spot]]
"""The run's evaluated episodes, by everything that an episode depends on (`act_of`), and where the
trajectory of each is stored, if it is."""


def act_of(agent: AgentSpec, adapter: str | None, task: str, trial: int) -> Act | None:
    """The key of an episode. `adapter`: what acts, by name, which for a weighted sum has those of
    its adapters in it. None for an adapter that the agent lacks."""
    refs = tuple(a for a in agent.adapters if adapter is not None and a.name in adapter)
    if adapter is not None and not refs:
        return None
    return agent.model, agent.prompt, adapter, refs, task, trial


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
        items=0 if score is None else len(score.checks),
    )


@dataclass(eq=False)
class Evaluator:
    """Runs agents on held-out tasks and writes outcomes to `path`, and trajectories, on request,
    beside it. A lost episode is run again, up to `terms.retries` times, and once by every
    later start."""

    path: Path
    player: Player
    terms: Terms
    progress: Progress
    played: KnownOutcomes

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
        plan: EvaluationPlan,
        *,
        policy: Policy | None = None,
        keep: bool = False,
    ) -> list[Outcome]:
        """Outcomes in the plan's order. Seeds depend on task and trial only, so that agents meet
        the same draws. `keep`: also store the trajectories. With a `policy` other than the run's,
        every episode is run. Raises UserError if too many are lost."""
        job = _OneAgent(label, agent, plan, self.player, keep)
        if policy is not None:
            job = replace(job, player=replace(self.player, policy=policy))
        lines = self._outcomes.setdefault(label, {})
        if any(key not in lines for key in plan.keys):
            chosen = choices(job.player, agent, plan.tasks) if self._reuses(job) else None
            shared = {} if chosen is None else self._shared(job, chosen)
            self._copy(job, shared)
            which = [i for i in range(len(plan.keys)) if i not in shared]
            there = {i for i in which if plan.keys[i] in lines}
            self._play(job, which, there, chosen)
        while again := [i for i, key in enumerate(plan.keys) if self._plays_again(lines[key])]:
            self._play(job, again)
        outcomes = [lines[key] for key in plan.keys]
        if policy is None:
            causes = [f"{o.error} ({o.task})" for o in outcomes if o.lost]
            what = f"evaluation of {label}"
            check(what, causes, len(outcomes), self.terms.max_lost, self.player.faults.where)
        if self._reuses(job):
            for i, outcome in enumerate(outcomes):
                act = act_of(agent, outcome.adapter, outcome.task, outcome.trial)
                if act is not None and not outcome.lost:
                    self.played.setdefault(act, (outcome, (job.call(outcome.attempt), i)))
        return outcomes

    def _plays_again(self, outcome: Outcome) -> bool:
        earlier = (outcome.agent, outcome.task, outcome.trial) in self._lost
        return outcome.lost and (earlier or outcome.attempt < self.terms.retries)

    def copy(self, label: str, source: Sequence[Outcome]) -> list[Outcome]:
        """Copies outcomes to another label, for an identical agent."""
        lines = self._outcomes.setdefault(label, {})
        for outcome in source:
            there = lines.get((outcome.task, outcome.trial))
            if there is None or (there.lost and there.attempt < outcome.attempt):
                self._write(replace(outcome, agent=label))
        return [lines[o.task, o.trial] for o in source]

    def everything(self) -> list[Outcome]:
        return [outcome for lines in self._outcomes.values() for outcome in lines.values()]

    @property
    def count(self) -> int:
        """Number of episodes in the file, of all agents; a repeated episode counts once."""
        return sum(map(len, self._outcomes.values()))

    def close(self) -> None:
        self._lines.close()
        self._kept.close()

    def _reuses(self, job: _OneAgent) -> bool:
        """Whether outcomes may be copied: with the run's own policy, if episodes are repeatable."""
        return job.player is self.player and job.player.repeats

    def _shared(
        self, job: _OneAgent, chosen: Sequence[Choice | BaseException]
    ) -> dict[int, tuple[Outcome, Spot]]:
        """Outcomes of other agents that act as this one would, by index in the plan. Independent of
        how many of this agent's own are on disk, so that the set of episodes to run is too."""
        shared: dict[int, tuple[Outcome, Spot]] = {}
        for i, (task, trial) in enumerate(job.plan.episodes):
            choice = chosen[i % len(job.plan.tasks)]
            if isinstance(choice, Mixture | BaseException):
                continue
            played = self.played.get(act_of(job.agent, choice, task.id, trial))
            if played is not None and (not job.keep or played[1] in self._kept):
                shared[i] = played
        return shared

    def _copy(self, job: _OneAgent, shared: Mapping[int, tuple[Outcome, Spot]]) -> None:
        version = job.agent.version
        for i, (outcome, spot) in shared.items():
            if job.keep:
                self._kept.add(job.call(), i, replace(self._kept.read(spot), agent=version))
            if job.plan.keys[i] not in self._outcomes[job.label]:
                self._write(replace(outcome, agent=job.label, version=version, attempt=0))

    def _play(
        self,
        job: _OneAgent,
        which: Sequence[int],
        there: Collection[int] = (),
        chosen: Sequence[Choice | BaseException] | None = None,
    ) -> None:
        """Runs those of the episodes `which` that are not `there`. `chosen`: by the router, by
        task."""
        if len(there) == len(which):
            return
        episodes = [job.plan.episodes[i] for i in which]
        self.progress.phase(f"evaluation of {job.label}", total=len(which) - len(there))

        def ended(place: int, trajectory: Trajectory) -> None:
            (task, trial), before = episodes[place], self._outcomes[job.label]
            attempt = before[task.id, trial].attempt + 1 if (task.id, trial) in before else 0
            if job.keep:
                self._kept.add(job.call(attempt), which[place], trajectory)
            self._lost.discard((job.label, task.id, trial))
            self._write(outcome_of(job.label, trial, trajectory, attempt))
            score = trajectory.score
            self.progress.episode(None if score is None else score.similarity, charged=False)

        seeds = [stable_seed(self.terms.seed, "evaluation", t.id, trial) for t, trial in episodes]
        route = None
        if chosen is not None:
            choices = [chosen[i % len(job.plan.tasks)] for i in which]
            names = tuple(c for c in choices if c is None or isinstance(c, str))
            route = names if len(names) == len(choices) else None  # one is no adapter's name
        tasks = tuple(task for task, _ in episodes)
        batch = EpisodeBatch(job.agent, tasks, tuple(seeds), self.terms.temperature, route)
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
    plan: EvaluationPlan
    player: Player
    keep: bool

    def call(self, attempt: int = 0) -> str:
        return f"evaluation/{self.label}" + (f"/attempt{attempt}" if attempt else "")


def choices(
    player: Player, agent: AgentSpec, tasks: Sequence[Task]
) -> list[Choice | BaseException] | None:
    """The router's choice for each task, or an exception if the task cannot be reset. None if it is
    only known in an episode, as a model is waited for."""
    router = make_router(agent, player.policy)
    if agent.router is None:
        return [router.route((), ())] * len(tasks)
    suite = player.suites.target
    if router.waits or suite.asks_user():
        return None
    choices: list[Choice | BaseException] = []
    for first in range(0, len(tasks), player.policy.capacity):  # reset together
        steps = list(opened(suite, tasks[first : first + player.policy.capacity]))
        prompts = [
            (with_guidance(step.messages, agent.prompt), step.tools)
            for step in steps
            if isinstance(step, Step)
        ]
        routed = iter(router.routes(prompts))
        choices += [next(routed) if isinstance(step, Step) else step for step in steps]
    return choices
