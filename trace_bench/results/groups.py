"""Groups of runs that can stand in one table: the held-out tasks, their code and their data are the
same, and so is all but method, its own settings, the training tasks, budget and seed. What their
rows are called, `rows` says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.text import file_name
from trace_bench.core.types import grouped
from trace_bench.results.rows import LONGEST, by_source, digest, variants
from trace_bench.results.run import TRAINING, Run
from trace_bench.results.table import Table


@dataclass(frozen=True)
class Group:
    """Comparable runs. `name`: of a folder, the same whenever the same runs are grouped; `values`:
    what they share; `remarks`: sentences for the caption; `left_out`: runs that repeat another."""

    name: str
    runs: tuple[Run, ...]
    values: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def groups_of(runs: Sequence[Run], free: Sequence[str] = ()) -> list[Group]:
    """The groups, the largest first. A setting that a run lacks (it is another part's) separates it
    from no other; among several groups it then goes with the largest. `free`: settings that
    separate no runs and name no row, such as those along an axis."""
    facts = {name for run in runs for name in run.about}
    alike: dict[str, tuple[dict[str, str], list[Run]]] = {}
    for run in runs:
        values = {key: str(v) for key, v in shared(run, facts).items() if key not in free}
        alike.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(run)
    joined: list[tuple[str, dict[str, str], list[Run]]] = []
    for key, (values, some) in sorted(alike.items(), key=lambda kv: (-len(kv[1][1]), kv[0])):
        for _, common, members in joined:
            if all(values[k] == common[k] for k in values.keys() & common.keys()):
                members += some
                common |= values
                break
        else:
            joined.append((f"{_place(some[0])}-{digest(key)}", dict(values), list(some)))
    order = {id(run): n for n, run in enumerate(runs)}
    return [
        _group(name, values, free, sorted(members, key=lambda r: order[id(r)]))
        for name, values, members in sorted(joined, key=lambda g: -len(g[2]))
    ]


def shared(run: Run, facts: Iterable[str]) -> dict[str, Any]:
    """What all runs of a table must agree in, wherever their training tasks came from: settings,
    held-out tasks, reporting rule, and the suite's own `facts`."""
    apart = (*TRAINING, "env.eval_split")  # the split that was reported is evaluation.split
    settings = {key: value for key, value in run.settings.items() if key not in apart}
    about = {f"the suite's {n}": run.about.get(n, "not recorded") for n in facts}
    return {**settings, "held-out tasks": run.tasks, "rule": run.rule, **about}


def _place(run: Run) -> str:
    """Suite and split as the beginning of a folder's name."""
    parts = (*run.suite_name.split("/"), run.settings["evaluation.split"])
    return file_name("-".join(filter(None, parts))[:LONGEST])


def _group(
    name: str, values: Mapping[str, str], free: Sequence[str], members: Sequence[Run]
) -> Group:
    kept, left_out = _without_repeats(members, free)
    plain = [_without(r, free) for r in kept]
    named, remarks = variants(plain)
    named, more = by_source(plain, named)
    rows = tuple(r.named(n.label) for r, n in zip(kept, named, strict=True))
    return Group(name, rows, values, (*remarks, *more), tuple(left_out))


def _without(run: Run, keys: Sequence[str]) -> Run:
    """The run without these settings, of itself, of its method and of its training tasks."""

    def rest(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        apart = {*keys, *(f"training.{key}" for key in keys)}
        return {k: v for k, v in settings.items() if prefix + k not in apart}

    options = rest(run.method_settings, "method.")
    source, settings = rest(run.source), rest(run.settings)
    return replace(run, settings=settings, method_settings=options, source=source)


def _without_repeats(members: Sequence[Run], free: Sequence[str]) -> tuple[list[Run], list[str]]:
    """One run of each kind, place along an axis and seed: two of one seed are not two seeds."""
    first: dict[tuple[object, ...], Run] = {}
    left_out = []
    for run in members:
        at = str([run.settings.get(key) for key in free])
        kind = (run.label, run.options_key, run.source_key, at, run.budget, run.seed)
        if (same := first.setdefault(kind, run)) is not run:
            left_out.append(
                f"run {run.fingerprint} repeats run {same.fingerprint} ({run.label}, budget "
                f"{run.budget}, seed {run.seed}); they differ in nothing that changes a result"
            )
    return list(first.values()), left_out


def overview(groups: Sequence[Group]) -> Table:
    """One row a group: its folder, its runs, and where its settings differ from the largest's."""
    rows = []
    for group in groups:
        methods = "; ".join(dict.fromkeys(r.label for r in group.runs))
        budgets = ", ".join(map(str, sorted({r.budget for r in group.runs})))
        a, b = group.values, groups[0].values
        differ = [
            f"{k}: {a[k][:LONGEST]} instead of {b[k][:LONGEST]}"
            for k in sorted(a.keys() & b.keys()) if a[k] != b[k]
        ]  # fmt: skip
        rows.append((group.name, f"{len(group.runs)}", methods, budgets, "; ".join(differ)))
    text = (
        "Runs that cannot stand in one table, in groups that can. A group's tables lie in the "
        "folder of its name. The last column says in what a group's runs differ from the first's, "
        "apart from method, budget and seed."
    )
    header = ("group", "runs", "methods", "budgets", "differs in")
    return Table("groups", text, header, tuple(rows))


# -- what runs differ in ---------------------------------------------------------------------------


def check_same_settings(runs: Sequence[Run], free: Sequence[str] = ()) -> None:
    """Raises UserError with the keys in which the runs differ, apart from method, budget, seed and
    the settings named in `free`: such runs do not allow a comparison of methods."""
    values: dict[str, dict[str, str]] = {}
    facts = {name for run in runs for name in run.about}
    for run in runs:
        agreed = shared(run, facts) | run.trained_on
        for key in agreed.keys() - set(free) - {f"training.{name}" for name in free}:
            values.setdefault(key, {})[str(agreed[key])] = run.fingerprint
    differ = "; ".join(
        f"{key} is {' or '.join(f'{v} (run {run})' for v, run in sorted(runs_with.items()))}"
        for key, runs_with in sorted(values.items())
        if len(runs_with) > 1
    )
    if differ:
        raise UserError(
            f"these runs cannot stand in one table, since they differ in more than method, budget "
            f"and seed: {differ}. Name runs that agree."
        )


def environment_code(run: Run) -> dict[str, str]:
    """What is recorded of the code of a run's environment, by setting; {} for the package's own."""
    prefixes = ("env.factory", "env.origin.")
    return {k: str(v) for k, v in run.settings.items() if k.startswith(prefixes)}


def other_environment(one: Run, other: Run) -> str:
    """In what the code of the two runs' environments, and so the tasks of an id, differ."""
    a, b = environment_code(one), environment_code(other)
    return "; ".join(
        f"{k} is {a.get(k, 'none')[:LONGEST]} and {b.get(k, 'none')[:LONGEST]}"
        for k in {**a, **b} if a.get(k) != b.get(k)
    )  # fmt: skip


def other_data(one: Run, other: Run) -> list[tuple[str, Any, Any]]:
    """[(fact, value, other value)] of the facts in which the runs' suites differ."""
    names = [n for n in one.about if n in other.about and one.about[n] != other.about[n]]
    return [(f"the suite's {n}", one.about[n], other.about[n]) for n in names]


# -- settings across which runs stand together (`--across`) ----------------------------------------


def world(run: Run) -> str:
    """The suite, and how the held-out episodes were drawn."""
    heat = run.settings.get("policy.eval_temperature") or 0
    return f"{run.suite_name}, {f'temperature {heat:g}' if heat else 'greedy'}"


def across(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """The runs with these settings among the method's own, so that rows name them, and with what
    goes with their values in the same world and part, as an algorithm's other settings do.
    UserError."""
    names = {key for run in runs for key in run.settings}
    for key in keys:
        if key not in names:
            raise unknown("setting", key, sorted(names), "--across")
    worlds = grouped(runs, world).values() if keys else []
    return [run for some in worlds for run in _across(some, keys)] if keys else list(runs)


def _across(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    parts = tuple(f"{key.partition('.')[0]}." for key in keys)
    rows = grouped(runs, lambda r: f"{r.marked} {[r.settings.get(key) for key in keys]}")
    along = [
        key for key in sorted({key for run in runs for key in run.settings} - set(keys))
        if key.startswith(parts) and _differ(key, runs)
        and not any(_differ(key, row) for row in rows.values())
    ]  # fmt: skip
    moved = []
    for run in runs:
        values = {k: v for k in keys if (v := run.settings.get(k)) is not None}
        values |= {k: run.settings[k] for k in along if k in run.settings}
        settings = {k: v for k, v in run.settings.items() if k not in (*keys, *along)}
        options = {**run.method_settings, **values}
        moved.append(replace(run, settings=settings, method_settings=options))
    return moved


def _differ(key: str, runs: Sequence[Run]) -> bool:
    return len({str(run.settings.get(key)) for run in runs}) > 1
