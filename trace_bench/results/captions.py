"""What stands with every table and figure: what was run, by which rule, what it can show, what the
suite says about itself, with which agents the runs began, and how far repeats differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trace_bench.core.errors import UserError
from trace_bench.core.summary import SHOWN, facts
from trace_bench.core.types import grouped
from trace_bench.results.compare import Cell
from trace_bench.results.records import BY_KIND, RULES, Record, own_settings, training_tasks
from trace_bench.results.statistics import ASSUMED, Repeats, can_show, many, mean

_BOUNDS = ("idle", "reference")


def head(records: Sequence[Record], page: str) -> str:
    """What stands in every caption; the rest is on a page of this name beside the table."""
    own, first = records[0], records[0].settings
    heat = first.get("policy.eval_temperature")
    drawn = "" if heat is None else f" at temperature {heat:g}"
    usual = {"protocol": "held_out", "accounting": "strict"}
    odd = "".join(f", {k} {first[k]}" for k, v in usual.items() if first.get(k, v) != v)
    return (
        f"{own.suite_name}, split {first['evaluation.split']}, {len(own.success)} tasks{drawn}, "
        f"rule {own.rule}{odd}, {_seeds(records)}. All about these runs: {page}.md."
    )


def describe(records: Sequence[Record], skipped: Sequence[str] = ()) -> str:
    own, first = records[0], records[0].settings
    trials, (low, _) = int(first.get("evaluation.trials", 1)), _seed_counts(records)
    bounds = [f"{own.floors[n]:.3f}" if n in own.floors else "not defined" for n in _BOUNDS]
    about = facts(own.about, models(first))
    sentences = (
        f"{own.suite_name}, split {first['evaluation.split']}, protocol {first['protocol']}, "
        f"accounting {first.get('accounting', 'strict')}, {len(own.success)} tasks, "
        f"{_seeds(records)}, {many(trials, 'trial')}.",
        f"Floor (idle) {bounds[0]}, ceiling (reference) {bounds[1]}. {_drops(records)}",
        _code(records),
        f"About the suite: {about}." if about else "",
        _beginnings(records),
        can_show(len(own.success), low, trials, repeats_of(records)),
        f"Run folders that could not be used: {len(skipped)}." if skipped else "",
    )
    return " ".join(filter(None, sentences))


def readable(records: Sequence[Record]) -> str:
    first = records[0].settings
    trials = int(first.get("evaluation.trials", 1))
    trained = "the reported tasks" if first["protocol"] == "paper" else "other tasks"
    return (
        f"Suite {records[0].suite_name}, {len(records[0].success)} tasks of its "
        f"{first['evaluation.split']} split, methods trained on {trained}, {_seeds(records)}, "
        f"{many(trials, 'trial')}"
    )


def _seeds(records: Sequence[Record]) -> str:
    """How many seeds a cell has; two numbers where not all have the same."""
    low, high = _seed_counts(records)
    return many(high, "seed") if low == high else f"{low} to {high} seeds"


def _seed_counts(records: Sequence[Record]) -> tuple[int, int]:
    """The fewest and the most seeds of a cell."""
    of_cell = grouped(records, lambda r: (r.label, r.budget, training_tasks(r)))
    counts = [len({r.seed for r in own}) for own in of_cell.values()]
    return min(counts), max(counts)


def _code(records: Sequence[Record]) -> str:
    """What computed the runs: commits, and how many runs had files that were changed since."""
    known = [r.git for r in records if r.git]
    if not known:
        return ""
    commits = dict.fromkeys(str(g["commit"])[:7] for g in known)
    changed = sum(bool(g["changed"]) for g in known)
    text = f"Code of the {len(records)} runs: {', '.join(commits)}"
    return text + (f"; in {changed} of them files were changed since." if changed else ".")


def _drops(records: Sequence[Record]) -> str:
    """The reporting rule and what happened to held-out episodes and rollouts on the way."""
    total: Counter[str] = Counter()
    by: dict[str, Counter[str]] = {kind: Counter() for kind in BY_KIND}
    for record in records:
        for key, value in record.drops.items():
            if isinstance(value, Mapping):
                by[key].update(value)
            else:
                total[key] += value
    rule = records[0].rule
    return (
        f"Rule {rule} ({RULES[rule]}): of {total['episodes']} held-out episodes the "
        f"infrastructure lost {_parts(by['lost'])}; {total['retried']} were retried, "
        f"{total['excluded']} left out, {total['zeroed']} counted as failures; "
        f"cut off by a limit: {_parts(by['limits'])}. Rollouts of the methods that were lost: "
        f"{_parts(by['rollouts_lost'])}."
    )


def _parts(counts: Counter[str]) -> str:
    named = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{counts.total()} ({named})" if counts.total() else "0"


def models(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The models in roles, from flat settings ("llm.user.model"): {role: {model, ...}}."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        group, _, rest = key.partition(".")
        role, _, name = rest.partition(".")
        if group == "llm" and name in SHOWN:
            found.setdefault(role, {})[name] = value
    return found


# -- runs that began with the agent of earlier ones: tables show them by all that was spent -------


def by_total(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records as they stand in tables: each budget with what was spent before the run, and,
    where not all began alike, a name that says after what ("gepa > grpo"). Raises UserError."""
    for record in records:
        if record.before is None:
            raise UserError(
                f"run {record.fingerprint} began with an agent of unknown cost, so it cannot stand "
                "in a table with others. Leave it out, or run it again with `agent` set to the "
                "finished run that made that agent."
            )
    alike = began_alike(records)
    return tuple(
        replace(r.named(r.label if alike else name(r)), budget=r.budget + (r.before or 0))
        for r in records
    )


def name(record: Record) -> str:
    """The method after those that made the agent with which it began."""
    runs = record.beginning["runs"] if record.beginning else ()
    return " > ".join([*(str(run["method"]) for run in runs), record.label])


def began_with(record: Record) -> str:
    """The agent that the run began with and what it cost; "" for the bare model."""
    if record.beginning is None:
        return ""
    return _agents([record.beginning["runs"]])


def _beginnings(records: Sequence[Record]) -> str:
    """Which agents runs began with; "" where all began with the bare model."""
    found = {_mark(r): r.beginning["runs"] for r in records if r.beginning is not None}
    if not found:
        return ""
    who = "All runs" if began_alike(records) else "Runs"
    alike = grouped(found.values(), lambda runs: str([_cost(run) for run in runs]))
    listed = "; or with ".join(map(_agents, alike.values()))
    return f"{who} began with {listed}; those rollouts are counted in the budgets."


def _agents(chains: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Agents that were made alike, each by a chain of runs of its own."""
    made = []
    for runs in zip(*chains, strict=True):
        names = dict.fromkeys(str(run["fingerprint"]) for run in runs)
        method, spent, remarks = _cost(runs[0])
        each, which = (" each", "runs") if len(names) > 1 else ("", "run")
        made.append(f"{method} ({spent}{each}, {which} {', '.join(names)}{remarks})")
    return f"the agent{'s' * (len(chains) > 1)} of {', '.join(made) or 'no training'}"


def _cost(run: Mapping[str, Any]) -> tuple[str, str, str]:
    """A run's method, what it spent, and what is to be remarked."""
    rollouts, marks = run["rollouts"], run.get("marks") or []
    spent = sum(rollouts.values()) if isinstance(rollouts, dict) else "unknown"
    taught = f" and {run['demonstrations']} demonstrations" if run["demonstrations"] else ""
    remarks = "".join(f"; {mark}" for mark in marks)
    return str(run["method"]), f"{spent} rollouts{taught}", remarks


def began_alike(records: Sequence[Record]) -> bool:
    """Whether the runs' base agents are one agent."""
    return len({_mark(record) for record in records}) < 2


def _mark(record: Record) -> str:
    return str(record.beginning["sha256"]) if record.beginning else ""


# -- how repeats of one thing differ --------------------------------------------------------------


def repeats_of(records: Sequence[Record]) -> Repeats:
    """From runs that differ in the seed only, else from the trials of each run, else assumed. Runs
    that never disagree, such as those without training, say nothing."""

    def apart(r: Record) -> str:
        settings = [sorted(s.items(), key=str) for s in (r.settings, r.source)]
        return str((r.label, r.budget, settings, own_settings(r)))

    several = [some for some in grouped(records, apart).values() if len(some) > 1]
    if found := [each for each in map(_between_seeds, several) if each[0]]:
        flips, excess, freedom = (mean([each[i] for each in found]) for i in range(3))
        source = f"between the seeds of these runs, mean over {many(len(found), 'setting')}"
        return Repeats(flips, source, math.sqrt(excess), 2 * freedom)
    tried = [2 * c * (n - c) / (n * (n - 1)) for r in records for c, n in r.passes if n > 1]
    if any(tried):
        return Repeats(mean(tried), "between the trials of these runs")
    return ASSUMED


def _between_seeds(records: Sequence[Record]) -> tuple[float, float, float]:
    """(flips, variance of the seeds' means beyond them, its degrees of freedom)."""
    trials = int(records[0].settings.get("evaluation.trials", 1))
    values = Cell("", 0, tuple(records)).matrix
    flips = _disagreement(values)
    means = np.nanmean(values, axis=1)
    excess = float(np.var(means, ddof=1)) - flips / (2 * values.shape[1] * trials)
    return flips, max(0.0, excess), len(records) - 1


def _disagreement(values: np.ndarray) -> float:
    """How often episodes of two rows of [repeats, tasks] differ, a(1-b) + b(1-a): mean over the
    tasks that both have, then over the pairs that have such tasks."""
    known = (~np.isnan(values)).astype(float)
    found = np.nan_to_num(values)
    either = found @ known.T
    both = known @ known.T
    pair = np.tril_indices(len(values), -1)
    some = both[pair] > 0
    differ = (either + either.T - 2 * found @ found.T)[pair]
    return float(np.mean(differ[some] / both[pair][some])) if some.any() else 0.0
