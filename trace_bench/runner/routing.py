"""Measures routing: compares the router with the best choice of adapter for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trace_bench.core.types import AgentSpec
from trace_bench.runner.outcomes import Outcome


@dataclass(frozen=True)
class Routing:
    """The quality of a router, computed from every adapter's outcome on every task."""

    oracle: tuple[Outcome, ...]  # per task and trial the best of base model and adapters
    single: str  # the adapter (or "base model") that is best on all tasks alone
    single_outcomes: tuple[Outcome, ...]
    agreement: float  # share of tasks on which the router's choice scores no less than the oracle
    decisive: int  # tasks on which the choices differ in score
    agreement_decisive: float | None  # the same among those; None when there are none


def routing(choices: Mapping[str | None, Sequence[Outcome]], final: Sequence[Outcome]) -> Routing:
    """`choices[name][i]` is adapter `name` (None: base model) on the i-th episode of the plan,
    `final[i]` the routed agent's outcome there. The base model wins ties, then the earlier adapter.

    The oracle chooses by the very scores on which it is evaluated: no method, but a bound for
    routers that choose one adapter. A sum of adapters can be better.
    """
    names = sorted(choices, key=lambda name: name is not None)
    best = [max(names, key=lambda n: _rank(choices[n][i])) for i in range(len(final))]
    oracle = tuple(choices[name][i] for i, name in enumerate(best))
    adapters = [n for n in names if n is not None] or names
    single = max(adapters, key=lambda n: _total(choices[n]))
    differ = [i for i in range(len(final)) if len({_rank(choices[n][i]) for n in names}) > 1]
    agree = [
        _rank(choices.get(o.adapter, final)[i]) >= _rank(oracle[i]) for i, o in enumerate(final)
    ]
    return Routing(
        oracle=oracle,
        single=single or "base model",
        single_outcomes=tuple(choices[single]),
        agreement=sum(agree) / len(agree) if agree else 1.0,
        decisive=len(differ),
        agreement_decisive=sum(agree[i] for i in differ) / len(differ) if differ else None,
    )


def choices_of(agent: AgentSpec) -> list[str | None]:
    """What its router chooses among: its adapters and, unless the router names one to act
    otherwise, the base model (None)."""
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


def _rank(outcome: Outcome) -> tuple[float, float]:
    return (outcome.success, outcome.similarity)


def _total(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    return (sum(o.success for o in outcomes), sum(o.similarity for o in outcomes))
