"""What stands with every table and figure: what was run, by which rule, what it can show, what the
suite says about itself, with which agents the runs began, and how far repeats differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.summary import SHOWN, EarlierRun, facts
from trace_bench.core.types import grouped
from trace_bench.results.cells import Cell
from trace_bench.results.run import Run
from trace_bench.results.statistics import ASSUMED, Repeats, can_show, many, mean

_BOUNDS = ("idle", "reference")


def head(runs: Sequence[Run], page: str) -> str:
    """What stands in every caption; the rest is on a page of this name beside the table."""
    one, first = runs[0], runs[0].settings
    heat = first.get("policy.eval_temperature")
    drawn = "" if heat is None else f" at temperature {heat:g}"
    usual = {"protocol": "held_out", "accounting": "strict"}
    odd = "".join(f", {k} {first[k]}" for k, v in usual.items() if first.get(k, v) != v)
    return (
        f"{one.suite_name}, split {first['evaluation.split']}, {len(one.success)} tasks{drawn}, "
        f"rule {one.rule}{odd}, {_seeds(runs)}. All about these runs: {page}.md."
    )


def describe(runs: Sequence[Run], skipped: Sequence[str] = ()) -> str:
    one, first = runs[0], runs[0].settings
    low, _ = _seed_counts(runs)
    bounds = [f"{one.floors[n]:.3f}" if n in one.floors else "not defined" for n in _BOUNDS]
    about = facts(one.about, models(first))
    sentences = (
        f"{one.suite_name}, split {first['evaluation.split']}, protocol {first['protocol']}, "
        f"accounting {first.get('accounting', 'strict')}, {len(one.success)} tasks, "
        f"{_seeds(runs)}, {many(one.trials, 'trial')}.",
        f"Floor (idle) {bounds[0]}, ceiling (reference) {bounds[1]}. {_drops(runs)}",
        _code(runs),
        f"About the suite: {about}." if about else "",
        _beginnings(runs),
        can_show(len(one.success), low, one.trials, repeats_of(runs)),
        f"Run folders that could not be used: {len(skipped)}." if skipped else "",
    )
    return " ".join(filter(None, sentences))


def readable(runs: Sequence[Run]) -> str:
    first = runs[0].settings
    trained = "the reported tasks" if first["protocol"] == "paper" else "other tasks"
    return (
        f"Suite {runs[0].suite_name}, {len(runs[0].success)} tasks of its "
        f"{first['evaluation.split']} split, methods trained on {trained}, {_seeds(runs)}, "
        f"{many(runs[0].trials, 'trial')}"
    )


def _seeds(runs: Sequence[Run]) -> str:
    """How many seeds a cell has; two numbers where not all have the same."""
    low, high = _seed_counts(runs)
    return many(high, "seed") if low == high else f"{low} to {high} seeds"


def _seed_counts(runs: Sequence[Run]) -> tuple[int, int]:
    of_cell = grouped(runs, lambda r: (r.label, r.budget, r.training_tasks))
    counts = [len({r.seed for r in own}) for own in of_cell.values()]
    return min(counts), max(counts)


def _code(runs: Sequence[Run]) -> str:
    """What computed the runs: commits, and how many runs had files that were changed since."""
    commits_of = [r.git for r in runs if r.git]
    if not commits_of:
        return ""
    commits = dict.fromkeys(git.commit[:7] for git in commits_of)
    changed = sum(git.changed for git in commits_of)
    text = f"Code of the {len(runs)} runs: {', '.join(commits)}"
    return text + (f"; in {changed} of them files were changed since." if changed else ".")


def _drops(runs: Sequence[Run]) -> str:
    """What happened to held-out episodes and rollouts on the way."""
    every = [run.drops for run in runs]
    return (
        "Rule retry (a lost episode is played again; what is lost again is left out of the score): "
        f"of {sum(d.episodes for d in every)} held-out episodes the infrastructure lost "
        f"{_sum(d.lost for d in every)}; {sum(d.retried for d in every)} were retried, "
        f"{sum(d.excluded for d in every)} left out, 0 counted as failures; cut off by a limit: "
        f"{_sum(d.limits for d in every)}. Rollouts of the methods that were lost: "
        f"{_sum(d.rollouts_lost for d in every)}."
    )


def _sum(counts: Iterable[Mapping[str, int]]) -> str:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    named = ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
    return f"{total.total()} ({named})" if total.total() else "0"


def models(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The models in roles, from flat settings ("llm.user.model"): {role: {model, ...}}."""
    roles: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        group, _, rest = key.partition(".")
        role, _, name = rest.partition(".")
        if group == "llm" and name in SHOWN:
            roles.setdefault(role, {})[name] = value
    return roles


# -- runs that began with the agent of earlier ones: tables show them by all that was spent -------


def by_total(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs as they stand in tables: each budget with what was spent before the run, and,
    where not all began alike, a name that says after what ("gepa > grpo"). Raises UserError."""
    for run in runs:
        if run.before is None:
            raise UserError(
                f"run {run.fingerprint} began with an agent of unknown cost, so it cannot stand "
                "in a table with others. Leave it out, or run it again with `agent` set to the "
                "finished run that made that agent."
            )
    alike = began_alike(runs)
    return tuple(
        replace(r.named(r.label if alike else name(r)), budget=r.budget + (r.before or 0))
        for r in runs
    )


def name(run: Run) -> str:
    """The method after those that made the agent with which it began."""
    return " > ".join([*(earlier.method for earlier in _chain(run)), run.label])


def began_with(run: Run) -> str:
    """The agent that the run began with and what it cost; "" for the bare model."""
    return "" if run.beginning is None else _agents([run.beginning.runs])


def _chain(run: Run) -> Sequence[EarlierRun]:
    return () if run.beginning is None else run.beginning.runs


def _beginnings(runs: Sequence[Run]) -> str:
    """Which agents runs began with; "" where all began with the bare model."""
    chains = {_mark(r): _chain(r) for r in runs if r.beginning is not None}
    if not chains:
        return ""
    who = "All runs" if began_alike(runs) else "Runs"
    alike = grouped(chains.values(), lambda chain: str([_cost(earlier) for earlier in chain]))
    listed = "; or with ".join(map(_agents, alike.values()))
    return f"{who} began with {listed}; those rollouts are counted in the budgets."


def _agents(chains: Sequence[Sequence[EarlierRun]]) -> str:
    """Agents that were made alike, each by a chain of runs of its own."""
    agents = []
    for runs in zip(*chains, strict=True):
        names = dict.fromkeys(run.fingerprint for run in runs)
        method, spent, remarks = _cost(runs[0])
        each, which = (" each", "runs") if len(names) > 1 else ("", "run")
        agents.append(f"{method} ({spent}{each}, {which} {', '.join(names)}{remarks})")
    return f"the agent{'s' * (len(chains) > 1)} of {', '.join(agents) or 'no training'}"


def _cost(run: EarlierRun) -> tuple[str, str, str]:
    spent = "unknown" if run.rollouts is None else sum(run.rollouts.values())
    taught = f" and {run.demonstrations} demonstrations" if run.demonstrations else ""
    remarks = "".join(f"; {mark}" for mark in run.marks)
    return run.method, f"{spent} rollouts{taught}", remarks


def began_alike(runs: Sequence[Run]) -> bool:
    """Whether the runs' base agents are one agent."""
    return len({_mark(run) for run in runs}) < 2


def _mark(run: Run) -> str:
    return run.beginning.sha256 if run.beginning else ""


# -- how repeats of one thing differ --------------------------------------------------------------


def repeats_of(runs: Sequence[Run]) -> Repeats:
    """From runs that differ in the seed only, else assumed. Runs that never disagree, such as those
    without training, say nothing."""

    def apart(r: Run) -> str:
        settings = [sorted(s.items(), key=str) for s in (r.settings, r.source)]
        return str((r.label, r.budget, settings, r.method_settings))

    several = [some for some in grouped(runs, apart).values() if len(some) > 1]
    if measured := [each for each in map(_between_seeds, several) if each[0]]:
        flips, excess, freedom = (mean([each[i] for each in measured]) for i in range(3))
        source = f"between the seeds of these runs, mean over {many(len(measured), 'setting')}"
        return Repeats(flips, source, math.sqrt(excess), 2 * freedom)
    return ASSUMED


def _between_seeds(runs: Sequence[Run]) -> tuple[float, float, float]:
    """(flips, variance of the seeds' means beyond them, its degrees of freedom)."""
    values = Cell("", 0, tuple(runs)).matrix
    flips = _disagreement(values)
    means = np.nanmean(values, axis=1)
    excess = float(np.var(means, ddof=1)) - flips / (2 * values.shape[1] * runs[0].trials)
    return flips, max(0.0, excess), len(runs) - 1


def _disagreement(values: np.ndarray) -> float:
    """How often episodes of two rows of [repeats, tasks] differ, a(1-b) + b(1-a): mean over the
    tasks that both have, then over the pairs that have such tasks."""
    scored = (~np.isnan(values)).astype(float)
    scores = np.nan_to_num(values)
    either = scores @ scored.T
    both = scored @ scored.T
    pair = np.tril_indices(len(values), -1)
    some = both[pair] > 0
    differ = (either + either.T - 2 * scores @ scores.T)[pair]
    return float(np.mean(differ[some] / both[pair][some])) if some.any() else 0.0
