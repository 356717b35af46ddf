"""What the tables are made of: one record a finished run, read from its folder or from a file of
such records that is small enough to commit.

A folder is taken at its word only after a check: it is finished, its files are those that its
summary was made from, and its ledger spends what the summary says and no more than the budget.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.errors import UserError
from trace_bench.store import read_json, read_lines

FORMAT = 1
# Settings in which runs of one table may differ without harm to the comparison.
FREE = (
    "method", "budget", "seed", "checkpoints", "run_dir", "tracker", "experiment", "sandbox",
    "evaluation.joint",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One run. `success[i]` is the mean over trials of the i-th held-out task in the order of task
    ids, None where every trial was lost; `tasks` is the hash of these ids."""

    method: str
    budget: int
    seed: int
    settings: Mapping[str, Any]  # all that comparable runs share, flat
    method_settings: Mapping[str, Any]
    rollouts: Mapping[str, int]  # by purpose
    tasks: str
    success: tuple[float | None, ...]
    base: tuple[float | None, ...]  # the same of the base agent
    similarity: float
    tokens: int  # of all charged rollouts
    lost: Mapping[str, int] = field(default_factory=dict)  # held-out episodes by boundary
    routing: Mapping[str, Any] | None = None
    capabilities: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    floors: Mapping[str, float] = field(default_factory=dict)
    wall_s: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    fingerprint: str = ""
    format: int = FORMAT

    @property
    def spent(self) -> int:
        """Rollouts charged to the budget."""
        return sum(n for purpose, n in self.rollouts.items() if purpose != "evaluation")

    @property
    def mean(self) -> float:
        """Success over the tasks that have a score."""
        known = [s for s in self.success if s is not None]
        return sum(known) / len(known) if known else 0.0


@dataclass(frozen=True)
class Found:
    """Records and, in words, every place that gave none."""

    records: tuple[Record, ...]
    skipped: tuple[str, ...]


def find(places: Sequence[Path]) -> Found:
    """Records of all run folders at or below `places`, and of record files (*.jsonl) named there.

    A folder that is unfinished, damaged or edited is skipped and named. UserError for a place that
    does not exist."""
    records: list[Record] = []
    skipped: list[str] = []
    for place in places:
        if not place.exists():
            raise UserError(f"{place} does not exist; name run folders or record files.")
        if place.is_file():
            records += read_records(place)
            continue
        for folder in _folders(place):
            try:
                records.append(read_run(folder))
            except UserError as error:
                skipped.append(str(error))
    return Found(tuple(records), tuple(skipped))


def _folders(place: Path) -> Iterator[Path]:
    """Run folders, in order; what lies inside a run folder is not searched."""
    if (place / "config.yaml").is_file():
        yield place
        return
    for child in sorted(p for p in place.iterdir() if p.is_dir()):
        yield from _folders(child)


def read_records(path: Path) -> list[Record]:
    """The records of a file. Raises UserError naming file and line of one that is not a record."""
    out = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.get("format") != FORMAT:
            raise UserError(
                f"{path}, line {number} has format {line.get('format')!r}; this version reads "
                f"{FORMAT}."
            )
        try:
            out.append(_frozen(line))
        except TypeError as error:
            raise UserError(f"{path}, line {number} is not a record ({error}).") from error
    return out


def _frozen(line: Mapping[str, Any]) -> Record:
    lists = ("success", "base", "capabilities", "adapters")
    values: dict[str, Any] = {k: tuple(v) if k in lists else v for k, v in line.items()}
    return Record(**values)


def read_run(folder: Path) -> Record:
    """The record of one run folder. Raises UserError naming the folder and what is wrong."""
    import yaml

    path = folder / "summary.json"
    if not path.exists():
        raise UserError(f"{folder}: not finished (no summary.json)")
    summary = read_json(path)
    if not summary.get("complete"):
        raise UserError(f"{folder}: not finished")
    for name in ("ledger.jsonl", "evaluation.jsonl"):
        if _hash(folder / name) != summary["hashes"].get(name):
            raise UserError(f"{folder}: {name} is not the file that the summary was made from")
    outcomes = read_lines(folder / "evaluation.jsonl")
    played = (folder / "ledger.jsonl").exists()  # a method that plays nothing has no ledger
    ledger = read_lines(folder / "ledger.jsonl") if played else []
    _check_ledger(folder, ledger, summary)
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    final = [o for o in outcomes if o["agent"] == "final"]
    tasks = sorted({o["task"] for o in final})
    return Record(
        method=summary["method"],
        budget=summary["budget"],
        seed=summary["seed"],
        settings=dict(_shared(config)),
        method_settings={k: v for k, v in config["method"].items() if k != "name"},
        rollouts=summary["rollouts"],
        tasks=hashlib.sha256("\n".join(tasks).encode()).hexdigest()[:16],
        success=_per_task(final, tasks),
        base=_per_task([o for o in outcomes if o["agent"] == "base"], tasks),
        similarity=summary["score"]["similarity"],
        tokens=sum(int(line["tokens"]) for line in ledger),
        lost=dict(Counter(o["error"].partition(":")[0] for o in final if o["error"])),
        routing=summary["routing"],
        capabilities=tuple(summary["capabilities"]),
        adapters=tuple(summary["adapters"]),
        floors={
            name: _mean([o for o in outcomes if o["agent"] == name])
            for name in ("idle", "random", "reference")
        },
        wall_s=summary["wall_s"],
        versions=summary["versions"],
        git=summary["git"],
        fingerprint=summary["fingerprint"],
    )


def _check_ledger(
    folder: Path, ledger: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> None:
    counted = Counter(line["purpose"] for line in ledger)
    said = {k: v for k, v in summary["rollouts"].items() if k != "evaluation"}
    counted.pop("evaluation", None)
    if dict(counted) != said:
        raise UserError(f"{folder}: the ledger holds {dict(counted)}, the summary says {said}")
    if sum(counted.values()) > summary["budget"]:
        raise UserError(
            f"{folder}: {sum(counted.values())} rollouts in the ledger, more than the budget of "
            f"{summary['budget']}"
        )


def _per_task(
    outcomes: Iterable[Mapping[str, Any]], tasks: Sequence[str]
) -> tuple[float | None, ...]:
    values: dict[str, list[float]] = {}
    for o in outcomes:
        if o["score"] is not None:
            values.setdefault(o["task"], []).append(float(o["score"]["success"]))
    return tuple(sum(values[t]) / len(values[t]) if t in values else None for t in tasks)


def _mean(outcomes: Sequence[Mapping[str, Any]]) -> float:
    known = [float(o["score"]["success"]) for o in outcomes if o["score"] is not None]
    return sum(known) / len(known) if known else 0.0


def _shared(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flat settings without those that may differ."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name in FREE:
            continue
        if isinstance(value, Mapping):
            yield from _shared(value, f"{name}.")
        else:
            yield name, value


def _hash(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def as_line(record: Record) -> dict[str, Any]:
    """A record as a line of a record file; whole successes as integers, to keep it small."""
    line = dataclasses.asdict(record)
    for name in ("success", "base"):
        line[name] = [int(v) if v is not None and v == int(v) else v for v in line[name]]
    return line
