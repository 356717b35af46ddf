"""What the rows of a table are called where runs of one method have other settings of it, or were
trained on other tasks, and the remarks that say what the plain names stand for."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.types import grouped
from trace_bench.results.places import as_typed
from trace_bench.results.run import Run

LONGEST = 60
"""Characters of a value that a row or a remark shows, and that a row adds to its method's name."""


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:6]


def _short(text: str, what: str, key: str) -> str:
    """The text, or, where it is too long for a row, `what` with a digest of the key."""
    return text if len(text) <= LONGEST else f"{what} {digest(key)}"


# -- other settings of a method --------------------------------------------------------------------


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
        texts = [_settings(run, keys) for run in firsts]
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
    or one of these where all are too long for a row."""
    others = [*runs[:n], *runs[n + 1 :]]
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
    return next((text for k in telling if len(text := _settings(run, [k])) <= LONGEST), "")


def _differing(runs: Sequence[Run]) -> list[str]:
    """The settings in which they differ; those of a choice, such as "route.share", within it."""
    options = [run.method_settings for run in runs]

    def differ(key: str) -> bool:
        choice, dot, _ = key.partition(".")
        choices = [o.get(choice) if dot else None for o in options]
        pairs = {(str(c), str(o.get(key))) for c, o in zip(choices, options, strict=True)}
        return len(pairs) > len(set(choices))

    return [key for key in sorted({key for o in options for key in o}) if differ(key)]


def _settings(run: Run, keys: Sequence[str]) -> str:
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
