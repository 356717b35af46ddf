"""Where records come from: run folders, folders that hold some, files of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_bench.errors import UserError
from trace_bench.results.records import Record, read_records
from trace_bench.results.rules import DEFAULT
from trace_bench.results.runs import read_run


@dataclass(frozen=True)
class Found:
    """Records and, in words, every place that gave none."""

    records: tuple[Record, ...]
    skipped: tuple[str, ...]


def find(places: Sequence[Path], rule: str | None = None) -> Found:
    """Records of all run folders at or below `places`, and of record files (*.jsonl) named there.
    `rule` None is the default rule for folders, and for files the one that they were made by.

    A folder that is unfinished, damaged or edited is skipped and named. UserError for a place that
    does not exist, and for a record file of another rule: it does not hold the attempts."""
    records: list[Record] = []
    skipped: list[str] = []
    for place in places:
        if not place.exists():
            raise UserError(f"{place} does not exist; name run folders or record files.")
        if place.is_file():
            records += _of_rule(read_records(place), rule, place)
            continue
        for folder in _folders(place):
            try:
                records.append(read_run(folder, rule or DEFAULT))
            except UserError as error:
                skipped.append(str(error))
    return Found(tuple(records), tuple(skipped))


def _of_rule(records: list[Record], rule: str | None, place: Path) -> list[Record]:
    other = {r.rule for r in records} - {rule}
    if rule is not None and other:
        raise UserError(
            f"{place} holds records by the rule {', '.join(sorted(other))}; another rule needs the "
            "attempts themselves. Name the run folders."
        )
    return records


def _folders(place: Path) -> Iterator[Path]:
    """Run folders, in order; what lies inside a run folder is not searched."""
    if (place / "config.yaml").is_file():
        yield place
        return
    for child in sorted(p for p in place.iterdir() if p.is_dir()):
        yield from _folders(child)
