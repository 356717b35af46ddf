"""The data behind the tables: one record per finished run, read from its folder (see runs.py) or
from a file of such records that is small enough to commit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines
from trace_bench.core.types import charged
from trace_bench.results.checks import check

FORMAT = 1
DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What reading raises where a file holds something else than a run has written."""
TRAINING = ("env.train_split", "env.train_tasks", "env.dev_split")
"""Settings that choose the tasks which a method has."""
_LISTS = ("success", "base", "capabilities", "adapters", "needs", "marks")


@dataclass(frozen=True)
class Record:
    """One run. `success[i]` is the mean over trials of the i-th held-out task in the order of task
    ids, None where every trial was lost; `tasks` is the hash of these ids."""

    method: str  # its name
    budget: int
    seed: int
    settings: Mapping[str, Any]  # all that comparable runs share, flat, and TRAINING
    method_settings: Mapping[str, Any]
    rollouts: Mapping[str, int]  # by purpose
    tasks: str
    success: tuple[float | None, ...]
    base: tuple[float | None, ...]  # the same of the base agent
    similarity: float
    tokens: int  # of all charged rollouts
    rule: str = "retry"  # the reporting rule, see rules.py
    drops: Mapping[str, Any] = field(default_factory=dict)  # what the rule left out, see rules.py
    passes: Sequence[Sequence[int]] = field(
        default_factory=list
    )  # with several trials: [successes, scored] per task
    routing: Mapping[str, Any] | None = None
    capabilities: tuple[str, ...] = ()
    votes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # [for, labelling runs]
    adapters: tuple[str, ...] = ()
    curve: Sequence[Mapping[str, Any]] = field(
        default_factory=list
    )  # checkpoints on the development split
    training: Sequence[Sequence[Any]] = field(
        default_factory=list
    )  # [rollouts, adapter, reward, zero, constant groups]
    floors: Mapping[str, float] = field(default_factory=dict)
    wall_s: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    fingerprint: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)  # the suite's own facts
    beginning: Mapping[str, Any] | None = None  # what the run began with, as in summary.json
    usage: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # tokens of models at servers, by role: {prompt_tokens, completion_tokens}
    needs: tuple[int, ...] = ()  # how many capabilities each task needs, where its suite says so
    per_item: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict
    )  # of each checklist item, by role: {requests, prompt_tokens, completion_tokens}
    suite: str = ""  # `name/variant` as the suite calls itself, where the settings do not name it
    source: Mapping[str, Any] = field(
        default_factory=dict
    )  # if the training tasks are another suite's than the held-out ones, what they depend on:
    # `training.suite`, its facts (training.*) and its settings (training.env.*, ...)
    parameters: int | None = None  # of the base model, where the run says so
    marks: tuple[str, ...] = ()  # what every table must say about the method
    row: str = ""  # what tells its row from others of its method; only in a table, in no file
    format: int = FORMAT

    @property
    def label(self) -> str:
        """The name of its row in a table."""
        marked = f"{self.method} ({', '.join(self.marks)})" if self.marks else self.method
        return self.row or marked

    def named(self, row: str) -> Record:
        """The record with this name of its row."""
        return self if row == self.label else replace(self, row=row)

    @property
    def suite_name(self) -> str:
        """The suite's name in tables, figures and messages."""
        env, variant = self.settings["env.name"], self.settings.get("env.suite")
        return self.suite or (f"{env}/{variant}" if variant else str(env))

    @property
    def trained_on(self) -> dict[str, Any]:
        """Where the method's tasks came from, in the keys of `source`; {} without any rollout."""
        if not self.spent:
            return {}
        own = {f"training.{k}": self.settings[k] for k in TRAINING if k in self.settings}
        return {"training.suite": self.suite_name, **own, **self.source}

    @property
    def spent(self) -> int:
        """Rollouts charged to this run's own budget."""
        return charged(self.rollouts, self.settings.get("accounting", "strict"))

    @property
    def before(self) -> int | None:
        """Rollouts that were spent on the agent with which the run began; None if unknown."""
        if self.beginning is None:
            return 0
        found: int | None = self.beginning["rollouts"]
        return found

    @property
    def total(self) -> int:
        """Rollouts charged in this run and before it, where that is known."""
        return self.spent + (self.before or 0)

    @property
    def coverage(self) -> float:
        """The share of the held-out episodes that have a score, or count as failures by the rule
        `zero`."""
        episodes = self.drops.get("episodes", 0)
        return 1 - self.drops.get("excluded", 0) / episodes if episodes else 1.0

    @property
    def mean(self) -> float:
        """Success over the tasks that have a score."""
        known = [s for s in self.success if s is not None]
        return sum(known) / len(known) if known else 0.0


def training_tasks(record: Record) -> int:
    """How many training tasks the run had; 0 stands for all of its split."""
    own = record.source or {f"training.{k}": v for k, v in record.settings.items()}
    return int(own.get("training.env.train_tasks") or 0)


def flat_settings(record: Record) -> dict[str, Any]:
    """All settings but method, budget and seed; the method's own begin with `method.`."""
    return {
        **record.source,
        **record.settings,
        **{f"method.{k}": v for k, v in record.method_settings.items()},
    }


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
            out.append(from_line(line))
        except DAMAGE as error:
            raise UserError(f"{path}, line {number} is not a record ({error}).") from error
    return out


def from_line(line: Mapping[str, Any]) -> Record:
    """The record that a line holds. Raises one of `DAMAGE` if it holds none."""
    values: dict[str, Any] = {k: tuple(v) if k in _LISTS else v for k, v in line.items()}
    method, bracket, marks = str(values["method"]).partition(" (")
    if bracket and "marks" not in values:  # as in records from before they were apart
        values |= {"method": method, "marks": (marks.removesuffix(")"),)}
    record = Record(**values)
    check(record)
    return record


def as_line(record: Record) -> str:
    """A record as a line of a record file; whole successes as integers, to keep it small."""
    line = dict(vars(record))
    del line["row"]
    for name in (
        "about",
        "beginning",
        "usage",
        "needs",
        "suite",
        "source",
        "per_item",
        "parameters",
        "marks",
    ):
        if not line[name]:
            del line[name]  # as in records from before there were any
    for name in ("success", "base"):
        line[name] = [int(v) if v is not None and v == int(v) else v for v in line[name]]
    return json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n"
