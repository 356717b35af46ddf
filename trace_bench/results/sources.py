"""Rows of runs whose training tasks came from different places: each row says from where."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trace_bench.results.records import Record

SUITE = "training.suite"
_LONGEST = 60
"""Characters that a row adds to its method's name."""


def source_of(record: Record) -> str:
    """Where a run's training tasks came from, as a key; "" if it looked at none."""
    found = {k: v for k, v in record.trained_on.items() if v is not None}  # older runs lack some
    return json.dumps(found, sort_keys=True, default=str) if found else ""


def by_source(records: Sequence[Record], named: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """`named`, the same runs as `records` with the names of their rows, with what tells the
    training tasks of a row from those of most runs; and remarks that say what those are. A run that
    ran no rollout has no training tasks."""
    often = Counter(source_of(r) for r in records if r.trained_on)
    if len(often) < 2:
        return list(named), []
    sources = sorted(often, key=lambda key: (-often[key], len(key), key))
    plain: dict[str, dict[str, Any]] = {}  # of each suite the source of most runs
    for source in sources:
        data = json.loads(source)
        plain.setdefault(data[SUITE], data)
    main = json.loads(sources[0])[SUITE]
    texts = _texts(sources, plain, main)
    remarks = [f"Unless a row says otherwise, the training tasks are those of {main}."]
    remarks += [_usual(suite, data, sources) for suite, data in plain.items()]
    for source, text in texts.items():
        if len(text) > _LONGEST:  # too long for a row
            digest = hashlib.sha256(source.encode()).hexdigest()[:6]
            texts[source] = f"training {digest}"
            remarks.append(f"training {digest}: {text}.")
    shown = [texts.get(source_of(r), "") for r in records]
    rows = zip(named, shown, strict=True)
    return [replace(r, method=f"{r.method}, {t}" if t else r.method) for r, t in rows], [
        text for text in remarks if text
    ]


def _texts(sources: Sequence[str], plain: dict[str, dict[str, Any]], main: str) -> dict[str, str]:
    """For each source in what it differs from that of most runs, no two the same; "" for that
    source itself. A suite's own facts mostly follow from its settings, so they are named only where
    the settings tell nothing apart."""

    def words(source: str, only: str) -> str:
        data = json.loads(source)
        usual = plain[data[SUITE]]
        found = [] if data[SUITE] == main else [f"trained on {data[SUITE]}"]
        keys = sorted(k for k in {*data, *usual} if _name(k).startswith(only))
        keys = [k for k in keys if data.get(k) != usual.get(k)]
        found += [f"{_name(k)} {data.get(k, 'not set')}" for k in keys]
        return ", ".join(found)

    short = {source: words(source, "env.") for source in sources}
    often = Counter(short.values())
    return {s: text if often[text] == 1 else words(s, "") for s, text in short.items()}


def _usual(suite: str, data: dict[str, Any], sources: Sequence[str]) -> str:
    """What rows on a suite's tasks share where they name nothing; "" if all share everything."""
    own = [found for found in map(json.loads, sources) if found[SUITE] == suite]
    differ = sorted({k for found in own for k in {*found, *data} if found.get(k) != data.get(k)})
    if not differ:
        return ""
    values = ", ".join(f"{_name(key)} {data.get(key, 'not set')}" for key in differ)
    return f"On {suite} without further words: {values}."


def _name(key: str) -> str:
    return key.removeprefix("training.")
