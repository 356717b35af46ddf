"""A finished run as tables and figures see it, read from its folder (`folder`) or from a line of a
file of records, which is small enough to commit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from trace_bench.core.decode import Unreadable, brief, convert
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines
from trace_bench.core.summary import GRPO, Began, ByName, Commit, Routing, titled
from trace_bench.core.types import (
    CHARGED,
    Amount,
    Figure,
    Meta,
    Name,
    Outcome,
    Share,
    charged,
    to_json,
)

FORMAT = 1
TRAINING = ("env.train_split", "env.train_tasks", "env.dev_split")
"""Settings that choose the tasks which a method has."""
DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What reading raises where a file holds something else than a run has written."""
CAPTION = ("env.name", "env.suite", "evaluation.split", "protocol")
"""Settings that stand in captions."""
FREE_TEXT = ("settings", "method_settings", "source", "versions", "machine", "about")
"""The fields whose texts stand in no table."""
OPTIONAL = (
    "about", "beginning", "needs", "suite", "source", "parameters", "marks", "machine", "worlds",
    "passes",
)  # fmt: skip
"""The fields that a line has only where they say something."""
Trials = Annotated[int, Meta(ge=0, le=10**6)]
Pair = tuple[Trials, Trials]


@dataclass(frozen=True)
class Drops:
    """What happened to the held-out episodes, each counted once however often it was attempted:
    `lost` by boundary, `limits` by what ended them; and the method's `rollouts_lost`."""

    episodes: Amount = 0
    attempts: Amount = 0
    retried: Amount = 0
    excluded: Amount = 0
    zeroed: Literal[0] = 0  # none is counted as a failure
    lost: ByName = field(default_factory=dict)
    limits: ByName = field(default_factory=dict)
    rollouts_lost: ByName = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """`success[i]` is the mean over trials of the i-th held-out task in the order of task ids, None
    where every trial was lost; `tasks` is the hash of these ids."""

    method: Name
    budget: Amount
    seed: Annotated[int, Meta(ge=0)]
    settings: Mapping[Name, Any]  # all that comparable runs share, flat, and TRAINING
    method_settings: Mapping[str, Any]  # its own; of what a name chooses: "route", "route.others"
    rollouts: Mapping[Name, Amount]  # by purpose
    tasks: Name
    success: tuple[Share | None, ...]
    base: tuple[Share | None, ...]  # the same of the base agent
    similarity: Figure
    tokens: Amount  # of all charged rollouts
    rule: Literal["retry"] = "retry"
    """A lost episode is played again; what is lost again is left out of the score."""
    drops: Drops = field(default_factory=Drops)
    passes: tuple[Pair, ...] = ()  # with several trials: (successes, scored) of each task
    routing: Routing | None = None
    capabilities: tuple[Name, ...] = ()
    votes: Mapping[Name, Pair] = field(default_factory=dict)  # [for, labelling runs]
    adapters: tuple[Name, ...] = ()
    floors: Mapping[Name, Figure] = field(default_factory=dict)
    wall_s: Mapping[Name, Figure] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    git: Commit | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)  # its kind, as in summary.json
    worlds: tuple[Name, ...] = ()  # which of several worlds each task is of
    fingerprint: Name = ""
    about: Mapping[str, Any] = field(default_factory=dict)  # the suite's own facts
    beginning: Began | None = None  # what the run began with
    needs: tuple[Amount, ...] = ()  # how many capabilities each task needs, where its suite says so
    suite: Name = ""  # `name/variant` as the suite calls itself, where the settings do not name it
    source: Mapping[Name, Any] = field(default_factory=dict)
    """If the training tasks are another suite's than the held-out ones, what they depend on:
    `training.suite`, its facts (training.*) and its settings (training.env.*, ...)."""
    parameters: Amount | None = None  # of the base model, where the run says so
    marks: tuple[Name, ...] = ()  # what every table must say about the method
    row: Name = ""  # what tells its row from others of its method; only in a table, in no file
    folder: Path | None = field(default=None, compare=False)  # it was read from; in no file
    format: int = FORMAT

    @property
    def marked(self) -> str:
        """The method with what every table must say about it."""
        return f"{self.method} ({', '.join(self.marks)})" if self.marks else self.method

    @property
    def titled(self) -> str:
        """The method with what trained it if not GRPO, and with what tables must say."""
        keys = ("trainer.algorithm.name", "trainer.origin.attribute")  # without the first: a user's
        names = [self.settings[key] for key in keys if key in self.settings]
        return titled(self.marked, [*names, GRPO][0] if self.rollouts.get("training") else "")

    @property
    def label(self) -> str:
        return self.row or self.titled

    def named(self, row: str) -> Run:
        return self if row == self.label else replace(self, row=row)

    @property
    def suite_name(self) -> str:
        env, variant = self.settings["env.name"], self.settings.get("env.suite")
        return self.suite or (f"{env}/{variant}" if variant else str(env))

    @property
    def trained_on(self) -> dict[str, Any]:
        """Where the method's tasks came from, in the keys of `source`; {} without any rollout."""
        if not self.spent:
            return {}
        chosen = {f"training.{k}": self.settings[k] for k in TRAINING if k in self.settings}
        return {"training.suite": self.suite_name, **chosen, **self.source}

    @property
    def source_key(self) -> str:
        """`trained_on` as a key; "" for a run that looked at no training task."""
        facts = {k: v for k, v in self.trained_on.items() if v is not None}
        return json.dumps(facts, sort_keys=True, default=str) if facts else ""

    @property
    def options_key(self) -> str:
        return json.dumps(self.method_settings, sort_keys=True, default=str)

    @property
    def training_tasks(self) -> int:
        """How many training tasks the run had; 0 stands for all of its split."""
        settings = self.source or {f"training.{k}": v for k, v in self.settings.items()}
        return int(settings.get("training.env.train_tasks") or 0)

    @property
    def trials(self) -> int:
        """Of each held-out task."""
        return int(self.settings.get("evaluation.trials", 1))

    @property
    def flat(self) -> dict[str, Any]:
        """All settings but method, budget and seed; the method's own begin with `method.`."""
        options = {f"method.{k}": v for k, v in self.method_settings.items()}
        return {**self.source, **self.settings, **options}

    @property
    def spent(self) -> int:
        """Rollouts charged to this run's own budget."""
        return charged(self.rollouts, self.settings.get("accounting", "strict"))

    @property
    def before(self) -> int | None:
        """Rollouts that were spent on the agent with which the run began; None if unknown."""
        return 0 if self.beginning is None else self.beginning.rollouts

    @property
    def total(self) -> int:
        """Rollouts charged in this run and before it, where that is known."""
        return self.spent + (self.before or 0)

    @property
    def coverage(self) -> float:
        """The share of held-out episodes with a score."""
        drops = self.drops
        return 1 - drops.excluded / drops.episodes if drops.episodes else 1.0

    @property
    def mean(self) -> float:
        scores = [s for s in self.success if s is not None]
        return sum(scores) / len(scores) if scores else 0.0


def counted(lines: Iterable[Outcome]) -> list[Outcome]:
    """One line per task and trial: the last attempt, without a score if it was lost."""
    chosen: dict[tuple[str, int], Outcome] = {}
    for line in lines:
        before = chosen.get((line.task, line.trial), line)
        chosen[line.task, line.trial] = max(before, line, key=lambda o: o.attempt)
    return list(chosen.values())


def drops(lines: Sequence[Outcome], rollouts_lost: ByName) -> Drops:
    lost = {(o.task, o.trial): o.error.partition(":")[0] for o in lines if o.error}
    again = {(o.task, o.trial) for o in lines if o.attempt}
    chosen = counted(lines)
    return Drops(
        episodes=len(chosen),
        attempts=len(lines),
        retried=len(again),
        excluded=sum(line.lost for line in chosen),
        lost=Counter(lost.values()),
        limits=Counter(o.stop.value for o in chosen if o.stop.endswith("_limit")),
        rollouts_lost=rollouts_lost,
    )


# -- files of records: one line a run --------------------------------------------------------------


def read_records(path: Path) -> list[Run]:
    """The runs of a file. Raises UserError naming file and line of one that is not a record."""
    out = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.get("format") != FORMAT:
            raise UserError(
                f"{path}, line {number} has format {line.get('format')!r}; this version reads "
                f"{FORMAT}."
            )
        try:
            out.append(run_of(line))
        except DAMAGE as error:
            raise UserError(f"{path}, line {number} is not a record ({error}).") from error
    return out


def as_line(run: Run) -> str:
    """A run as a line of a file of records; whole successes as integers, to keep it small."""
    line = to_json(replace(run, folder=None))
    del line["row"], line["folder"]
    for name in OPTIONAL:
        if not line[name]:
            del line[name]
    for name in ("success", "base"):
        line[name] = [int(v) if v is not None and v == int(v) else v for v in line[name]]
    return json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n"


def run_of(data: Mapping[str, Any]) -> Run:
    """The run that plain data hold, which strangers may have made; behind this check no table or
    figure needs to look again. Raises one of `DAMAGE`."""
    keys = Run.__annotations__  # an empty value under another key says nothing
    run = convert({key: value for key, value in data.items() if value or key in keys}, Run)
    json.dumps(data, ensure_ascii=False, allow_nan=False).encode()  # UTF-8, no NaN
    _check_names(run, data)
    _check_agreement(run)
    return run


def _check_names(run: Run, data: Mapping[str, Any]) -> None:
    """Raises Unreadable for what would stand in a table and is no short text."""
    settings = run.settings
    free = [[*data.get(name, ())] for name in FREE_TEXT]
    listed = [v for k, v in data.items() if k not in FREE_TEXT]
    names: list[Any] = [*_texts([listed, free]), run.label]
    names += [settings.get(n) for n in CAPTION if n != "env.suite" or settings.get(n) is not None]
    names += [run.source.get("training.suite")] if run.source else []
    for name in names:
        if not (isinstance(name, str) and name.isprintable() and len(name) <= 200):
            raise Unreadable(f"{brief(name)} is no short printable text")


def _check_agreement(run: Run) -> None:
    """Raises Unreadable where one field contradicts another."""
    settings, tasks = run.settings, len(run.success)
    counts = [settings.get("evaluation.trials", 1), settings.get("env.train_tasks") or 0]
    counts += [run.method_settings.get("max_capabilities", 0)]
    for what, fine in (
        ("accounting", settings.get("accounting", "strict") in CHARGED),
        ("base", len(run.base) == tasks),
        ("success", any(v is not None for v in run.success)),
        ("needs", len(run.needs) in (0, tasks)),
        ("worlds", len(run.worlds) in (0, tasks)),
        ("passes", len(run.passes) in (0, tasks)),
        ("passes or votes", all(some <= of for some, of in (*run.passes, *run.votes.values()))),
        ("a count in the settings", all(type(n) is int and 0 <= n <= 2**53 for n in counts)),
    ):
        if not fine:
            raise Unreadable(f"`{what}` does not agree with the rest of it")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in (*value, *value.values()) if isinstance(value, Mapping) else value:
            yield from _texts(part)
