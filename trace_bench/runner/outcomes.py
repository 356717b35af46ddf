"""The outcomes of an evaluation and the figures made of them: of an agent, of a router against the
best choice of adapter for each task, and of trials that say nothing new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trace_bench.core.summary import AgentRow, AgentScore, PairedDifference, Routing
from trace_bench.core.types import (
    AdapterRef,
    AgentSpec,
    Figures,
    Outcome,
    Task,
    Trajectory,
    grouped,
)
from trace_bench.results.statistics import paired_difference, share_interval, task_means
from trace_bench.runner.ledger import Spot


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


def choices_of(agent: AgentSpec) -> list[str | None]:
    """What its router chooses among: its adapters and mostly the base model (None)."""
    without = () if (agent.router or {}).get("otherwise") else (None,)
    return [*without, *(a.name for a in agent.adapters)]


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
    found = share_interval(list(success.values()))
    mean = sum(similarity.values()) / len(similarity)
    return AgentScore(found.value, mean, len(success), (found.low, found.high), failures)


def row(name: str, outcomes: Sequence[Outcome], base: Sequence[Outcome] | None) -> AgentRow | None:
    """The table row of an agent; None if none of its episodes has a score."""
    own = score(outcomes)
    if own.success is None or own.similarity is None or own.interval is None:
        return None
    change = None if base is None else difference(outcomes, base)
    return AgentRow(name, own.success, *own.interval, own.similarity, own.n, own.failures, change)


def difference(treated: Sequence[Outcome], control: Sequence[Outcome]) -> PairedDifference | None:
    """Paired difference in success, over the tasks for which both have a score."""
    one = task_means((o.task, o.success) for o in treated if o.score is not None)
    two = task_means((o.task, o.success) for o in control if o.score is not None)
    both = [task for task in two if task in one]
    if not both:
        return None
    return paired_difference({t: one[t] for t in both}, {t: two[t] for t in both})


def equal_trials(outcomes: Sequence[Outcome]) -> int | None:
    """The trials of each task, if several and all equal in score, turns and tokens; else None."""
    by_task = grouped(outcomes, lambda o: o.task).values()
    trials = {len(found) for found in by_task}
    if trials in (set(), {1}):
        return None
    equal = (len({(o.score, o.stop, o.turns, o.tokens) for o in found}) == 1 for found in by_task)
    return max(trials) if all(equal) else None
