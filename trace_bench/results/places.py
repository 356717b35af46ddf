"""Finds records: in run folders, folders that contain some, and files of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.store import reason, shown
from trace_bench.results.index import Index
from trace_bench.results.records import DAMAGE, Record, read_records
from trace_bench.results.rules import DEFAULT
from trace_bench.results.runs import read_run

RUN_FILES = ("summary.json", "ledger.jsonl", "evaluation.jsonl")


@dataclass(frozen=True)
class Found:
    """The records, and a message for every place without a usable one. `folders`: those of the
    records that come from a run folder, by fingerprint; `notes`: what else there is to say."""

    records: tuple[Record, ...]
    skipped: tuple[str, ...]
    folders: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find(places: Sequence[Path], rule: str | None = None, indexed: bool = False) -> Found:
    """Records of all run folders at or below `places`, and of record files (*.jsonl) named there.
    `rule` None is the default rule for folders, and for files the one that they were made by.
    `indexed`: with an index in each of the folders, see `_run_folders`.

    A folder that is unfinished, damaged or edited is skipped and named, and so is a run that was
    there before: two copies are not two seeds. UserError for a place that does not exist, and for a
    record file of another rule: it does not hold the attempts."""
    found: dict[str, Record] = {}
    folders: dict[str, Path] = {}
    skipped: list[str] = []
    notes: list[str] | None = [] if indexed else None

    def take(record: Record, place: Path) -> None:
        key = record.fingerprint or f"unnamed {len(found)}"
        if found.setdefault(key, record) is not record:
            skipped.append(f"{place}: run {record.fingerprint} is there already, counted once")
        elif place.is_dir():
            folders[key] = place

    for place in places:
        try:
            there, file = place.exists(), place.is_file()
        except OSError as error:
            raise UserError(f"{shown(place)} cannot be read: {reason(error)}.") from error
        if not there:
            raise UserError(f"{place} does not exist; name run folders or record files.")
        if file:
            for record in _of_rule(read_records(place), rule, place):
                take(record, place)
            continue
        for folder, record in _run_folders(place, rule or DEFAULT, skipped, notes):
            take(record, folder)
    return Found(tuple(found.values()), tuple(skipped), folders, tuple(notes or ()))


def _run_folders(
    place: Path, rule: str, skipped: list[str], notes: list[str] | None = None
) -> Iterator[tuple[Path, Record]]:
    """Every finished run at or below a folder, with its record; the others are named in
    `skipped`. With a list for `notes` an index in `place` is used and kept (not in a run folder
    itself), and what it has to say is added to the list."""
    index = None
    if notes is not None and not _is_run(place):
        index = Index(place, rule, notes)
    for folder in _folders(place, skipped):
        try:
            yield folder, read_run(folder, rule) if index is None else index.record(folder)
        except UserError as error:
            skipped.append(str(error))
        except DAMAGE as error:
            skipped.append(f"{folder}: damaged ({type(error).__name__}: {str(error)[:200]})")
    if index is not None:
        index.save()


def _is_run(place: Path) -> bool:
    """True also where that cannot be read: such a folder gets no index."""
    try:
        return (place / "config.yaml").exists()
    except OSError:
        return True


def _of_rule(records: list[Record], rule: str | None, place: Path) -> list[Record]:
    other = {r.rule for r in records} - {rule}
    if rule is not None and other:
        raise UserError(
            f"{place} holds records by the rule {', '.join(sorted(other))}; another rule needs the "
            "attempts themselves. Name the run folders."
        )
    return records


def _folders(place: Path, skipped: list[str]) -> Iterator[Path]:
    """Run folders, in order; what lies inside a run folder is not searched, and no folder is
    searched twice. Folders that should be one are named in `skipped`: empty ones, those with files
    of a run and no settings, and those that cannot be read."""
    left, seen = [place], set()
    while left:
        folder = left.pop()
        try:
            real = folder.resolve()
            if real in seen:  # by a link, which may lead in a circle
                continue
            seen.add(real)
            if (folder / "config.yaml").is_file():
                yield folder
                continue
            inside = sorted(folder.iterdir())
            if not inside or any(p.name in RUN_FILES for p in inside):
                skipped.append(f"{folder}: no run (no config.yaml)")
                continue
            left += [child for child in reversed(inside) if child.is_dir()]
        except (OSError, RuntimeError) as error:  # of `resolve`, for links that end nowhere
            skipped.append(f"{shown(folder)}: cannot be read ({type(error).__name__})")
