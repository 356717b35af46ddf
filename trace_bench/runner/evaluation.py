"""All evaluations of a run, in order: the base model, the scripted bounds, points of the curve
during training, the trained agent, its adapters and its router, and the yardsticks; and the figures
that are made of their outcomes.

They are held out, not charged to a budget nor visible to a method. A finished one is answered from
its file, one line per agent, task and trial."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trace_bench.core.protocols import Policy
from trace_bench.core.run_files import FLOORS
from trace_bench.core.store import Lines, stable_seed
from trace_bench.core.summary import (
    AgentRow,
    AgentScore,
    CurvePoint,
    EpisodeCounts,
    PairedDifference,
    Routing,
)
from trace_bench.core.types import AgentSpec, Figures, Outcome, Task, Trajectory
from trace_bench.play.rollouts import EpisodeBatch, Player
from trace_bench.results.statistics import paired_difference, share_interval, task_means
from trace_bench.runner.ledger import EpisodeFile, check
from trace_bench.runner.report import Clock, Progress
from trace_bench.settings.schema import Settings

UNABLE = (
    "episodes; methods that learn from differences between rewards may find none. Change `model` "
    "to one that can act in this environment, such as model=made (docs/own_world.md)"
)


def outcome_of(label: str, trial: int, trajectory: Trajectory, attempt: int) -> Outcome:
    score = trajectory.score
    return Outcome(
        agent=label,
        version=trajectory.agent,
        trial=trial,
        score=None if score is None else Figures(score.success, score.similarity),
        attempt=attempt,
        malformed=sum(turn.malformed is not None for turn in trajectory.turns),
        **trajectory.facts,
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


@dataclass(eq=False)
class Evaluation:
    """The evaluations of one run folder; finished ones are answered from disk.

    held_out: its tasks. development: those of the curve, if there are any. due: the rollout counts
    of the curve's points, ascending.
    outcomes: of each agent on the held-out tasks, by label ("base", "final", a floor's or a
    yardstick's name). points: the curve. routed: the router's choices, where there is a choice."""

    folder: Path
    player: Player
    settings: Settings
    held_out: Sequence[Task]
    development: Sequence[Task]
    due: Sequence[int]
    progress: Progress
    clock: Clock
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    points: list[CurvePoint] = field(default_factory=list)
    routed: RouterFigures | None = None

    def __post_init__(self) -> None:
        shared = (self.player, self.settings, self.progress)
        self._held_out, self._curve = (
            Evaluator(self.folder / f"{name}.jsonl", *shared) for name in ("evaluation", "curve")
        )

    def _evaluate(self, label: str, agent: AgentSpec, **how: Any) -> list[Outcome]:
        trials = self.settings.evaluation.trials
        return self._held_out.evaluate(label, agent, self.held_out, trials=trials, **how)

    def base(self, agent: AgentSpec) -> None:
        """Evaluates the base agent, and warns if it earned nothing."""
        with self.clock.phase("base evaluation"):
            outcomes = self._evaluate("base", agent, keep=True)
        self.outcomes["base"] = outcomes
        scored = [o for o in outcomes if not o.lost]
        if scored and not any(o.success or o.similarity for o in scored):
            self.progress.log(f"the base agent earned 0 in all {len(scored)} held-out {UNABLE}")

    def floors(self, policies: Mapping[str, Policy]) -> None:
        """Evaluates scripted policies, by name, as bounds for the scores."""
        with self.clock.phase("floors"):
            for name, policy in policies.items():
                agent = AgentSpec(model=name, version=name)
                self.outcomes[name] = self._evaluate(name, agent, policy=policy)

    def checkpoint(self, spent: int, agent: AgentSpec, until: int) -> None:
        """Evaluates the agent, trained with `spent` rollouts, on the development tasks if a point
        of the curve lies before `until`. So no point shows an agent that spent more rollouts."""
        reached = {p.checkpoint for p in self.points}
        due = [c for c in self.due if c not in reached and c < until]
        if not due:
            return
        outcomes = self._curve.evaluate(f"checkpoint {due[-1]}", agent, self.development)
        self.progress.phase("method")
        figures = vars(score(outcomes))
        self.points += [CurvePoint(checkpoint=c, rollouts=spent, **figures) for c in due]

    def trained(
        self, label: str, phase: str, base: AgentSpec, agent: AgentSpec, keep: bool = False
    ) -> None:
        """Evaluates a trained agent; an unchanged one gets the base agent's outcomes."""
        with self.clock.phase(phase):
            if acts_alike(agent, base):
                outcomes = self._held_out.copy(label, self.outcomes["base"])
            else:
                outcomes = self._evaluate(label, agent, keep=keep)
        self.outcomes[label] = outcomes

    def adapters(self, base: AgentSpec, agent: AgentSpec) -> None:
        """Evaluates every adapter alone on every held-out task, if the agent has a choice; and the
        model without any, if the router may choose that."""
        if not self.settings.evaluation.routing or not agent.adapters:
            return
        if len(agent.adapters) == 1 and agent.router is None:
            return
        with self.clock.phase("evaluation of every adapter"):
            self.routed = routing(self._each_alone(base, agent), self.outcomes["final"])

    def _each_alone(self, base: AgentSpec, agent: AgentSpec) -> dict[str | None, list[Outcome]]:
        """The outcomes of all that the agent's router chooses among, its adapters and mostly the
        base model (None), each for all tasks."""
        without = () if (agent.router or {}).get("otherwise") else (None,)
        outcomes = {}
        for name in (*without, *(a.name for a in agent.adapters)):
            alone, label = only(agent, name), f"adapter:{name or 'none'}"
            same = acts_alike(alone, base)
            outcomes[name] = self.outcomes["base"] if same else self._evaluate(label, alone)
        return outcomes

    @property
    def count(self) -> int:
        """Episodes in the files, of all agents."""
        return len(self._held_out.everything()) + len(self._curve.everything())

    def health(self) -> EpisodeCounts:
        """The episodes of all agents on the held-out tasks, those of an unchanged agent once."""
        agents = [o for o in self._held_out.everything() if o.agent not in FLOORS]
        counts = EpisodeCounts()
        counts.add({(o.version, o.task, o.trial): o for o in agents}.values())
        return counts

    def close(self) -> None:
        self._held_out.close()
        self._curve.close()


@dataclass(frozen=True)
class RouterFigures:
    """The quality of a router, computed from every adapter's outcome on every task."""

    figures: Routing
    oracle: tuple[Outcome, ...]  # per task and trial the best of base model and adapters
    single_outcomes: tuple[Outcome, ...]  # of the adapter `figures.single`


def routing(
    choices: Mapping[str | None, Sequence[Outcome]], final: Sequence[Outcome]
) -> RouterFigures:
    """`choices[name][i]` is adapter `name` (None: base model) on the i-th episode of the plan,
    `final[i]` the routed agent's outcome there. The base model wins ties, then the earlier adapter.

    The oracle chooses by the very scores on which it is evaluated: no method, but a bound for
    routers that choose one adapter. A sum of adapters can be better."""
    names = sorted(choices, key=lambda name: name is not None)
    each = zip(*(choices[name] for name in names), strict=True)
    oracle = tuple(max(of_task, key=_rank) for of_task in each)
    adapters = [n for n in names if n is not None] or names
    single = max(adapters, key=lambda n: _rank(*choices[n]))
    differ = [i for i in range(len(final)) if len({_rank(choices[n][i]) for n in names}) > 1]
    agree = [
        _rank(choices.get(o.adapter, final)[i]) >= _rank(oracle[i]) for i, o in enumerate(final)
    ]
    figures = Routing(
        agreement=sum(agree) / len(agree) if agree else 1.0,
        decisive=len(differ),
        agreement_decisive=sum(agree[i] for i in differ) / len(differ) if differ else None,
        single=single or "base model",
        oracle_score=score(oracle),
        single_score=score(choices[single]),
    )
    return RouterFigures(figures, oracle, tuple(choices[single]))


def acts_alike(one: AgentSpec, two: AgentSpec) -> bool:
    """Whether two agents do the same, whatever their versions."""
    return replace(one, version="") == replace(two, version="")


def only(agent: AgentSpec, adapter: str | None) -> AgentSpec:
    """The agent with one adapter for all tasks; None: without any."""
    kept = tuple(a for a in agent.adapters if a.name == adapter)
    version = f"{agent.version}/{adapter or 'none'}"
    return replace(agent, version=version, adapters=kept, router=None)


def _rank(*outcomes: Outcome) -> tuple[float, float]:
    return (sum(o.success for o in outcomes), sum(o.similarity for o in outcomes))


def score(outcomes: Sequence[Outcome]) -> AgentScore:
    scored = [o for o in outcomes if o.score is not None]
    failures = len(outcomes) - len(scored)
    if not scored:
        return AgentScore(None, failures=failures)
    success = task_means((o.task, o.success) for o in scored)
    similarity = task_means((o.task, o.similarity) for o in scored)
    interval = share_interval(list(success.values()))
    mean = sum(similarity.values()) / len(similarity)
    return AgentScore(interval.value, mean, len(success), (interval.low, interval.high), failures)


def row(name: str, outcomes: Sequence[Outcome], base: Sequence[Outcome] | None) -> AgentRow | None:
    """The table row of an agent; None if none of its episodes has a score."""
    s = score(outcomes)
    if s.success is None or s.similarity is None or s.interval is None:
        return None
    change = None if base is None else difference(outcomes, base)
    return AgentRow(name, s.success, *s.interval, s.similarity, s.n, s.failures, change)


def difference(treated: Sequence[Outcome], control: Sequence[Outcome]) -> PairedDifference | None:
    """Paired difference in success, over the tasks for which both have a score."""
    one = task_means((o.task, o.success) for o in treated if o.score is not None)
    two = task_means((o.task, o.success) for o in control if o.score is not None)
    both = [task for task in two if task in one]
    if not both:
        return None
    return paired_difference({t: one[t] for t in both}, {t: two[t] for t in both})
