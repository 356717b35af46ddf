"""Groups of runs that can stand in one table: the held-out tasks, their code and their data are the
same, and so is all but method, its own settings, the training tasks, budget and seed; and what
their rows are called."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.text import file_name
from trace_bench.core.types import grouped
from trace_bench.results.places import as_typed
from trace_bench.results.run import TRAINING, Run
from trace_bench.results.table import Table

LONGEST = 60
"""Characters of a value that a row or a remark shows, and that a row adds to its method's name."""


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
    held-out tasks, and the suite's own `facts`."""
    apart = (*TRAINING, "env.eval_split")  # the split that was reported is evaluation.split
    settings = {key: value for key, value in run.settings.items() if key not in apart}
    about = {f"the suite's {n}": run.about.get(n, "not recorded") for n in facts}
    return {**settings, "held-out tasks": run.tasks, **about}


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


# -- what rows are called: other settings of a method ----------------------------------------------


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:6]


def _short(text: str, what: str, key: str) -> str:
    """The text, or, where it is too long for a row, `what` with a digest of the key."""
    return text if len(text) <= LONGEST else f"{what} {digest(key)}"


def variants(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs with a method's name for each of its settings, the plain one for those that twice as
    many runs have as any other; and remarks that say so."""
    names: dict[tuple[str, str], str] = {}
    remarks = []
    for method, some in grouped(runs, lambda r: r.label).items():
        of = grouped(some, lambda r: r.options_key)
        ordered = sorted(of, key=lambda key: (-len(of[key]), key))
        if len(ordered) == 1:
            continue
        firsts = [of[key][0] for key in ordered]
        keys = _differing(firsts)
        texts = [_named_settings(run, keys) for run in firsts]
        plain = int(len(of[ordered[0]]) >= 2 * len(of[ordered[1]]))
        if plain:
            remarks.append(f"{method} without further words is that with {texts[0]}.")
            names[method, ordered[0]] = method
        for n in range(plain, len(ordered)):
            name = f"{method}, {_name(n, firsts, keys, texts[n])}"
            if name != f"{method}, {texts[n]}":
                remarks.append(f"{name}: {texts[n]}.")
            names[method, ordered[n]] = name
    return [r.named(names.get((r.label, r.options_key), r.label)) for r in runs], remarks


def _name(n: int, runs: Sequence[Run], keys: Sequence[str], text: str) -> str:
    """What tells a run from the others: what it has chosen by a name, else all in which it differs,
    or one of these where all are too long for a row. A setting that some lack and that is the same
    in all others came or went with the code, and is left out where the rest tells all apart."""
    others, options = [*runs[:n], *runs[n + 1 :]], [run.method_settings for run in runs]
    varied = [key for key in keys if len({str(o[key]) for o in options if key in o}) > 1]
    if len({_named_settings(run, varied) for run in runs}) == len(runs):
        keys, text = varied, _named_settings(runs[n], varied)
    short = _alone(runs[n], others, [k for k in keys if k.endswith(".name")])
    if not short and len(text) > LONGEST:
        short = _alone(runs[n], others, keys)
    return short or _short(text, "settings", text)


def _alone(run: Run, others: Sequence[Run], keys: Sequence[str]) -> str:
    """One setting that tells the run from all others and fits a row; "" if none does."""
    options = run.method_settings
    telling = [
        k for k in options
        if k in keys and all(str(o.method_settings.get(k)) != str(options[k]) for o in others)
    ]  # fmt: skip
    return next((text for k in telling if len(text := _named_settings(run, [k])) <= LONGEST), "")


def _differing(runs: Sequence[Run]) -> list[str]:
    """The settings in which they differ; those of a choice, such as "route.share", within it."""
    options = [run.method_settings for run in runs]

    def differ(key: str) -> bool:
        choice, dot, _ = key.partition(".")
        choices = [o.get(choice) if dot else None for o in options]
        pairs = {(str(c), str(o.get(key))) for c, o in zip(choices, options, strict=True)}
        return len(pairs) > len(set(choices))

    return [key for key in sorted({key for o in options for key in o}) if differ(key)]


def _named_settings(run: Run, keys: Sequence[str]) -> str:
    """The settings with their values; where one says what is chosen, its value stands alone."""
    texts = [as_typed(run.method_settings.get(k, "not set")) for k in keys]
    values = [" ".join(text.split())[:LONGEST] for text in texts]
    pairs = zip(keys, values, strict=True)
    return ", ".join(v if k.endswith(".name") else f"{k} {v}" for k, v in pairs)


# -- other training tasks --------------------------------------------------------------------------


def by_source(runs: Sequence[Run], named: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """`named`, the same runs with the names of their rows, with what tells the training tasks of a
    row from those of most runs; and remarks that say what those are."""
    often = Counter(r.source_key for r in runs if r.trained_on)
    if len(often) < 2:
        return list(named), []
    sources = sorted(often, key=lambda key: (-often[key], len(key), key))
    plain: dict[str, dict[str, Any]] = {}  # of each suite the source of most runs
    for source in sources:
        data = json.loads(source)
        plain.setdefault(data["training.suite"], data)
    main = json.loads(sources[0])["training.suite"]
    texts = _texts(sources, plain, main)
    remarks = [f"Unless a row says otherwise, the training tasks are those of {main}."]
    remarks += [_usual(suite, data, sources) for suite, data in plain.items()]
    for source, text in texts.items():
        texts[source] = _short(text, "training", source)
        if texts[source] != text:
            remarks.append(f"{texts[source]}: {text}.")
    words = [texts.get(r.source_key, "") for r in runs]
    rows = [r.named(f"{r.label}, {w}" if w else r.label) for r, w in zip(named, words, strict=True)]
    return rows, [text for text in remarks if text]


def _texts(
    sources: Sequence[str], plain: Mapping[str, Mapping[str, Any]], main: str
) -> dict[str, str]:
    """For each source in what it differs from that of most runs. A suite's own facts mostly follow
    from its settings, so they are named only where the settings tell nothing apart."""

    def words(source: str, only: str) -> str:
        data = json.loads(source)
        usual = plain[data["training.suite"]]
        said = [] if data["training.suite"] == main else [f"trained on {data['training.suite']}"]
        keys = sorted(k for k in {*data, *usual} if _bare(k).startswith(only))
        keys = [k for k in keys if data.get(k) != usual.get(k)]
        said += [f"{_bare(k)} {data.get(k, 'not set')}" for k in keys]
        return ", ".join(said)

    short = {source: words(source, "env.") for source in sources}
    often = Counter(short.values())
    return {s: text if often[text] == 1 else words(s, "") for s, text in short.items()}


def _usual(suite: str, data: Mapping[str, Any], sources: Sequence[str]) -> str:
    """What rows on a suite's tasks share where they name nothing; "" if all share everything."""
    alike = [other for other in map(json.loads, sources) if other["training.suite"] == suite]
    keys = sorted({k for o in alike for k in {*o, *data} if o.get(k) != data.get(k)})
    if not keys:
        return ""
    values = ", ".join(f"{_bare(key)} {data.get(key, 'not set')}" for key in keys)
    return f"On {suite} without further words: {values}."


def _bare(key: str) -> str:
    return key.removeprefix("training.")


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
    goes with their values in the same world and part, as an algorithm's others do. UserError."""
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
