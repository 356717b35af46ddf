"""Groups of runs that can stand in one table: the held-out tasks, their code and their data are the
same, and so is all but method, its own settings, the training tasks, budget and seed. Runs of one
method with other settings, or on other training tasks, are rows of their own there."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trace_bench.core.errors import unknown
from trace_bench.core.text import file_name
from trace_bench.core.types import grouped
from trace_bench.results.compare import DEFAULTS, shared
from trace_bench.results.records import Record, own_settings
from trace_bench.results.table import Table

_LONGEST = 60
"""Characters of a value that a row or a remark shows, and that a row adds to its method's name."""


@dataclass(frozen=True)
class Group:
    """Comparable runs. `name`: of a folder, the same whenever the same runs are grouped; `values`:
    what they share; `remarks`: sentences for the caption; `left_out`: runs that repeat another."""

    name: str
    records: tuple[Record, ...]
    values: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def world(record: Record) -> str:
    """The suite, and how the held-out episodes were drawn."""
    heat = record.settings.get("policy.eval_temperature") or 0
    return f"{record.suite_name}, {f'temperature {heat:g}' if heat else 'greedy'}"


def as_typed(value: Any) -> str:
    """A setting's value as it is written on a command line."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)


def recorded(keys: str) -> str:
    """What records call settings: `env.size` for `env.options.size`."""
    return keys.replace(".options.", ".")


def with_own(records: Sequence[Record], keys: Sequence[str]) -> list[Record]:
    """The records with these settings among the method's own, so that rows name them, and with what
    goes with their values in the same world and part, as an algorithm's other settings do.
    UserError."""
    known = {*DEFAULTS, *(key for record in records for key in record.settings)}
    for key in keys:
        if key not in known:
            raise unknown("setting", key, sorted(known), "--across")
    return [r for some in grouped(records, world).values() for r in _with_own(some, keys)]


def _with_own(records: Sequence[Record], keys: Sequence[str]) -> list[Record]:
    known = {*DEFAULTS, *(key for record in records for key in record.settings)}
    owned = [{k: v for k in keys if (v := value_of(r, k, records)) is not None} for r in records]
    rows: dict[str, list[Record]] = {}
    for record, own in zip(records, owned, strict=True):
        rows.setdefault(f"{record.label} {own}", []).append(record)
    parts = tuple(f"{key.partition('.')[0]}." for key in keys)
    along = [
        key for key in sorted(known - set(keys))
        if key.startswith(parts) and _differ(key, records)
        and not any(_differ(key, row) for row in rows.values())
    ]  # fmt: skip
    return [
        replace(
            r,
            settings={k: v for k, v in r.settings.items() if k not in (*keys, *along)},
            method_settings={
                **r.method_settings, **own, **{k: r.settings[k] for k in along if k in r.settings},
            },
        )
        for r, own in zip(records, owned, strict=True)
    ]  # fmt: skip


def _differ(key: str, records: Sequence[Record]) -> bool:
    return len({str(r.settings.get(key, DEFAULTS.get(key))) for r in records}) > 1


def value_of(record: Record, key: str, records: Sequence[Record]) -> Any:
    """The record's value of a setting; where it names none the default, or None if its part lacks
    what all have that name it, other than settings of the same choice: it has no such choice."""
    if key in record.settings:
        return record.settings[key]
    part, choice = f"{key.partition('.')[0]}.", f"{key.rpartition('.')[0]}."
    naming = [set(r.settings) for r in records if key in r.settings]
    all_have = set.intersection(*naming) if naming else set[str]()
    needed = {k for k in all_have if k.startswith(part) and not k.startswith(choice)}
    return DEFAULTS.get(key) if needed <= record.settings.keys() else None


def groups_of(records: Sequence[Record], free: Sequence[str] = ()) -> list[Group]:
    """The groups, the largest first. A setting that a run lacks (it is older, or another part's)
    separates it from no other; among several groups it then goes with the largest. `free`: settings
    that separate no runs and name no row, such as those along an axis."""
    facts = {name for record in records for name in record.about}
    alike: dict[str, tuple[dict[str, str], list[Record]]] = {}
    for record in records:
        given = shared(record, facts)
        values = {key: str(value) for key, value in given.items() if key not in free}
        alike.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(record)
    found: list[tuple[str, dict[str, str], list[Record]]] = []
    for key, (values, some) in sorted(alike.items(), key=lambda kv: (-len(kv[1][1]), kv[0])):
        for _, common, members in found:
            if all(values[k] == common[k] for k in values.keys() & common.keys()):
                members += some
                common |= values
                break
        else:
            found.append((f"{_place(some[0])}-{_digest(key)}", dict(values), list(some)))
    order = {id(record): n for n, record in enumerate(records)}
    return [
        _group(name, values, free, sorted(members, key=lambda r: order[id(r)]))
        for name, values, members in sorted(found, key=lambda g: -len(g[2]))
    ]


def _place(record: Record) -> str:
    """Suite and split as the beginning of a folder's name."""
    parts = (*record.suite_name.split("/"), record.settings["evaluation.split"])
    return file_name("-".join(filter(None, parts))[:_LONGEST])


def _group(
    name: str, values: Mapping[str, str], free: Sequence[str], members: Sequence[Record]
) -> Group:
    kept, left_out = _without_repeats(members, free)
    plain = [_without(r, free) for r in kept]
    named, remarks = _variants(plain)
    named, more = _by_source(plain, named)
    rows = tuple(r.named(n.label) for r, n in zip(kept, named, strict=True))
    return Group(name, rows, values, (*remarks, *more), tuple(left_out))


def _without(record: Record, keys: Sequence[str]) -> Record:
    """The record without these settings, of itself, of its method and of its training tasks."""
    apart = {*keys, *(f"training.{key}" for key in keys)}
    return replace(
        record,
        method_settings={
            k: v for k, v in record.method_settings.items() if f"method.{k}" not in apart
        },
        settings={k: v for k, v in record.settings.items() if k not in apart},
        source={k: v for k, v in record.source.items() if k not in apart},
    )


def _without_repeats(
    members: Sequence[Record], free: Sequence[str]
) -> tuple[list[Record], list[str]]:
    """One run of each kind, place along an axis and seed: two of one seed are not two seeds."""
    first: dict[tuple[object, ...], Record] = {}
    left_out = []
    for r in members:
        place = str([r.settings.get(key) for key in free])
        same = first.setdefault((r.label, _own(r), _source(r), place, r.budget, r.seed), r)
        if same is not r:
            left_out.append(
                f"run {r.fingerprint} repeats run {same.fingerprint} ({r.label}, budget "
                f"{r.budget}, seed {r.seed}); they differ in nothing that changes a result"
            )
    return list(first.values()), left_out


def _variants(members: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The records with a method's name for each of its settings, the plain one for those that twice
    as many runs have as any other; and remarks that say so."""
    names: dict[tuple[str, str], str] = {}
    remarks = []
    for method, some in grouped(members, lambda r: r.label).items():
        found = grouped(some, _own)
        ordered = sorted(found, key=lambda own: (-len(found[own]), own))
        if len(ordered) == 1:
            continue
        keys = _differing([found[own][0] for own in ordered])
        shown = [_shown(found[own][0], keys) for own in ordered]
        plain = int(len(found[ordered[0]]) >= 2 * len(found[ordered[1]]))
        if plain:
            remarks.append(f"{method} without further words is that with {shown[0]}.")
            names[method, ordered[0]] = method
        for own, text in zip(ordered[plain:], shown[plain:], strict=True):
            others = [found[o][0] for o in ordered if o != own]
            short = _alone(found[own][0], others, [k for k in keys if k.endswith(".name")])
            if not short and len(text) > _LONGEST:
                short = _alone(found[own][0], others, keys)
            short = short or _short(text, "settings", text)
            names[method, own] = f"{method}, {short}"
            if short != text:
                remarks.append(f"{names[method, own]}: {text}.")
    named = [r.named(names.get((r.label, _own(r)), r.label)) for r in members]
    return named, remarks


def _alone(record: Record, others: Sequence[Record], keys: Sequence[str]) -> str:
    """One setting that tells the record from all others and fits a row; "" if none does."""
    own, rest = own_settings(record), [own_settings(r) for r in others]
    found = [k for k in own if k in keys and all(str(r.get(k)) != str(own[k]) for r in rest)]
    return next((text for k in found if len(text := _shown(record, [k])) <= _LONGEST), "")


def _short(text: str, what: str, key: str) -> str:
    """The text, or, where it is too long for a row, `what` with a digest of the key."""
    return text if len(text) <= _LONGEST else f"{what} {_digest(key)}"


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:6]


def _own(record: Record) -> str:
    return json.dumps(own_settings(record), sort_keys=True, default=str)


def _differing(records: Sequence[Record]) -> list[str]:
    """The settings in which they differ; those of a choice, such as "route.share", within it."""
    own = [own_settings(r) for r in records]

    def differ(key: str) -> bool:
        choice, dot, _ = key.partition(".")
        of = [s.get(choice) if dot else None for s in own]
        return len({(str(c), str(s.get(key))) for c, s in zip(of, own, strict=True)}) > len(set(of))

    return [key for key in sorted({key for settings in own for key in settings}) if differ(key)]


def _shown(record: Record, keys: Sequence[str]) -> str:
    """The settings with their values; where one says what is chosen, its value stands alone."""
    own = own_settings(record)
    values = [" ".join(as_typed(own.get(k, "not set")).split())[:_LONGEST] for k in keys]
    pairs = zip(keys, values, strict=True)
    return ", ".join(v if k.endswith(".name") else f"{k} {v}" for k, v in pairs)


def _source(record: Record) -> str:
    """Where a run's training tasks came from, as a key; "" if it looked at none."""
    found = {k: v for k, v in record.trained_on.items() if v is not None}  # older runs lack some
    return json.dumps(found, sort_keys=True, default=str) if found else ""


def _by_source(
    records: Sequence[Record], named: Sequence[Record]
) -> tuple[list[Record], list[str]]:
    """`named`, the same runs with the names of their rows, with what tells the training tasks of a
    row from those of most runs; and remarks that say what those are."""
    often = Counter(_source(r) for r in records if r.trained_on)
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
    shown = [texts.get(_source(r), "") for r in records]
    rows = zip(named, shown, strict=True)
    return [r.named(f"{r.label}, {t}" if t else r.label) for r, t in rows], [
        text for text in remarks if text
    ]


def _texts(sources: Sequence[str], plain: dict[str, dict[str, Any]], main: str) -> dict[str, str]:
    """For each source in what it differs from that of most runs. A suite's own facts mostly follow
    from its settings, so they are named only where the settings tell nothing apart."""

    def words(source: str, only: str) -> str:
        data = json.loads(source)
        usual = plain[data["training.suite"]]
        found = [] if data["training.suite"] == main else [f"trained on {data['training.suite']}"]
        keys = sorted(k for k in {*data, *usual} if _name(k).startswith(only))
        keys = [k for k in keys if data.get(k) != usual.get(k)]
        found += [f"{_name(k)} {data.get(k, 'not set')}" for k in keys]
        return ", ".join(found)

    short = {source: words(source, "env.") for source in sources}
    often = Counter(short.values())
    return {s: text if often[text] == 1 else words(s, "") for s, text in short.items()}


def _usual(suite: str, data: dict[str, Any], sources: Sequence[str]) -> str:
    """What rows on a suite's tasks share where they name nothing; "" if all share everything."""
    own = [found for found in map(json.loads, sources) if found["training.suite"] == suite]
    differ = sorted({k for found in own for k in {*found, *data} if found.get(k) != data.get(k)})
    if not differ:
        return ""
    values = ", ".join(f"{_name(key)} {data.get(key, 'not set')}" for key in differ)
    return f"On {suite} without further words: {values}."


def _name(key: str) -> str:
    return key.removeprefix("training.")


def overview(groups: Sequence[Group]) -> Table:
    """One row a group: its folder, its runs, and where its settings differ from the largest's."""
    rows = []
    for group in groups:
        methods = "; ".join(dict.fromkeys(r.label for r in group.records))
        budgets = ", ".join(map(str, sorted({r.budget for r in group.records})))
        differ = _against(group, groups[0])
        rows.append((group.name, f"{len(group.records)}", methods, budgets, differ))
    text = (
        "Runs that cannot stand in one table, in groups that can. A group's tables lie in the "
        "folder of its name. The last column says in what a group's runs differ from the first's, "
        "apart from method, budget and seed."
    )
    header = ("group", "runs", "methods", "budgets", "differs in")
    return Table("groups", text, header, tuple(rows))


def _against(group: Group, first: Group) -> str:
    keys = sorted(group.values.keys() & first.values.keys())
    differ = [k for k in keys if group.values[k] != first.values[k]]
    return "; ".join(
        f"{k}: {group.values[k][:_LONGEST]} instead of {first.values[k][:_LONGEST]}" for k in differ
    )
