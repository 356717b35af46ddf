"""The data behind the tables: one record per finished run, read from its folder (see runs.py) or
from a file of such records that is small enough to commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from trace_bench.core.decode import convert, shaped, shown
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Unreadable
from trace_bench.core.run_files import PER_ITEM
from trace_bench.core.store import read_lines
from trace_bench.core.summary import Began, Commit, Routing
from trace_bench.core.types import CHARGED, Amount, Figure, Meta, Name, Share, charged

FORMAT = 1
DEFAULT = "retry"
RULES = {
    "retry": "a lost episode is played again; what is lost again is left out of the score",
    "exclude": "the first attempt counts; what was lost is left out of the score",
    "zero": "the first attempt counts; what was lost is a failure of the agent",
}
"""Reporting rules: which attempts of an episode count, and how lost ones are treated. Every figure
follows one of them and every table names it; an evaluation keeps all attempts, so that figures can
be made again under another."""
DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What reading raises where a file holds something else than a run has written."""
TRAINING = ("env.train_split", "env.train_tasks", "env.dev_split")
"""Settings that choose the tasks which a method has."""
CAPTION = ("env.name", "env.suite", "evaluation.split", "protocol")
"""Settings that stand in captions."""
BY_KIND = ("lost", "rollouts_lost", "limits")  # the drops that are counts by kind
FREE_TEXT = ("settings", "method_settings", "source", "versions", "machine", "about", "curve")
"""The fields whose texts stand in no table."""
LATER = (
    "about", "beginning", "usage", "needs", "suite", "source", "per_item", "parameters", "marks",
    "machine", "worlds",
)  # fmt: skip
"""The fields that older files of records do not have."""
Trials = Annotated[int, Meta(ge=0, le=10**6)]
Pair = tuple[Trials, Trials]
Point = tuple[Amount, Name, Figure | None, Figure | None, Figure | None]


@dataclass(frozen=True)
class Record:
    """One run. `success[i]` is the mean over trials of the i-th held-out task in the order of task
    ids, None where every trial was lost; `tasks` is the hash of these ids."""

    method: Name  # its name
    budget: Amount
    seed: Annotated[int, Meta(ge=0)]
    settings: Mapping[Name, Any]  # all that comparable runs share, flat, and TRAINING
    method_settings: Mapping[str, Any]
    rollouts: Mapping[Name, Amount]  # by purpose
    tasks: Name
    success: tuple[Share | None, ...]
    base: tuple[Share | None, ...]  # the same of the base agent
    similarity: Figure
    tokens: Amount  # of all charged rollouts
    rule: str = "retry"  # the reporting rule
    drops: Mapping[str, Any] = field(default_factory=dict)  # what the rule left out
    passes: tuple[Pair, ...] = ()  # with several trials: [successes, scored] per task
    routing: Mapping[str, Any] | None = None
    capabilities: tuple[Name, ...] = ()
    votes: Mapping[Name, Pair] = field(default_factory=dict)  # [for, labelling runs]
    adapters: tuple[Name, ...] = ()
    curve: tuple[Mapping[str, Any], ...] = ()  # checkpoints on the development split
    training: tuple[Point, ...] = ()  # [rollouts, adapter, reward, zero, constant groups]
    floors: Mapping[Name, Figure] = field(default_factory=dict)
    wall_s: Mapping[Name, Figure] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)  # its kind, as in summary.json
    worlds: tuple[Name, ...] = ()  # which of several worlds each task is of
    fingerprint: Name = ""
    about: Mapping[str, Any] = field(default_factory=dict)  # the suite's own facts
    beginning: Mapping[str, Any] | None = None  # what the run began with, as in summary.json
    usage: Mapping[Name, Mapping[str, Amount]] = field(default_factory=dict)
    """Tokens of models at servers, by role: {prompt_tokens, completion_tokens}."""
    needs: tuple[Amount, ...] = ()  # how many capabilities each task needs, where its suite says so
    per_item: Mapping[Name, Mapping[str, Figure]] = field(default_factory=dict)
    """Of each checklist item, by role: {requests, prompt_tokens, completion_tokens}."""
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
    def label(self) -> str:
        marked = f"{self.method} ({', '.join(self.marks)})" if self.marks else self.method
        return self.row or marked

    def named(self, row: str) -> Record:
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
        own = {f"training.{k}": self.settings[k] for k in TRAINING if k in self.settings}
        return {"training.suite": self.suite_name, **own, **self.source}

    @property
    def spent(self) -> int:
        """Rollouts charged to this run's own budget."""
        return charged(self.rollouts, self.settings.get("accounting", "strict"))

    @property
    def before(self) -> int | None:
        """Rollouts that were spent on the agent with which the run began; None if unknown."""
        rollouts: int | None = 0 if self.beginning is None else self.beginning["rollouts"]
        return rollouts

    @property
    def total(self) -> int:
        """Rollouts charged in this run and before it, where that is known."""
        return self.spent + (self.before or 0)

    @property
    def coverage(self) -> float:
        """The share of held-out episodes with a score (all, by the rule `zero`)."""
        episodes = self.drops.get("episodes", 0)
        return 1 - self.drops.get("excluded", 0) / episodes if episodes else 1.0

    @property
    def mean(self) -> float:
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
        **{f"method.{k}": v for k, v in own_settings(record).items()},
    }


_ONE, _SUM = ("retrieval", "both"), ("classifier", "soft", "turn", "gate")
_EARLIER: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "route_share": ("share", ("zero_shot", "both")),
    "route_examples": ("examples", _ONE),
    "route_tools": ("tools", _ONE),
    "route_top_k": ("top_k", _ONE),
    "route_threshold": ("threshold", _ONE),
    "route_others": ("others", _SUM),
    "route_weight": ("weight", ("linear",)),
    "route_density": ("density", ("ties",)),
    "gate_share": ("share", ("gate",)),
    "gate_rate": ("rate", ("gate",)),
    "gate_warm": ("warm", ("gate",)),
    "merge_weight": ("weight", ("linear",)),
}
"""Settings of `method.route` as older runs have them, all beside each other: the name within the
route, and the routes that have it."""
_GONE: Mapping[str, Mapping[str, Any]] = {
    "keep_runs": {
        **{"split": "equal", "trunk_share": 0.0, "target_share": 0.0, "pair_share": 0.0},
        **{"order_by": "delta", "gate": "global", "gate_lock": "prefill", "route_failures": True},
        **{"finish_share": 0.25, "route_l2": 1e-3, "route.l2": 1e-3, "route_contrast": False},
        **{"analysis_ceiling": 0.25, "idle_limit": 0.2, "random_limit": 0.3},
    },
    "synthetic_tasks": {"contrast_share": 0.2},
    "minibatch": {"temperature": 1.0, "merge": False},
    "per_task": {"per_task": 4},
    "holders": {"decay": 1.0},
}
"""What older runs have as settings and the values that all have by now, by a setting that tells the
methods: TRACE and its kin, those with synthetic tasks, GEPA, fine-tuning on successes, CM2."""


def own_settings(record: Record) -> dict[str, Any]:
    """The method's settings, the same in runs of all ages. Of what is chosen by a name, that name
    and keys such as "route.others"."""
    out: dict[str, Any] = {}
    given = record.method_settings
    gone = {k: v for mark in _GONE.keys() & given.keys() for k, v in _GONE[mark].items()}
    for key, value in given.items():
        if isinstance(value, Mapping) and "name" in value:
            out |= {key if k == "name" else f"{key}.{k}": v for k, v in value.items()}
        elif key in _EARLIER:
            name, routes = _EARLIER[key]
            if given.get("route") in routes:
                out[f"route.{name}"] = value
        else:
            out[key] = value
    if out.get("route") not in _ONE:
        gone["route.examples"] = 256
    return {key: value for key, value in out.items() if key not in gone or value != gone[key]}


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
            out.append(record_of(line))
        except DAMAGE as error:
            raise UserError(f"{path}, line {number} is not a record ({error}).") from error
    return out


def record_of(data: Mapping[str, Any]) -> Record:
    """The record that plain data hold, which strangers may have made; behind this check no table or
    figure needs to look again. Raises one of `DAMAGE`."""
    method, bracket, marks = str(data.get("method")).partition(" (")
    if bracket and "marks" not in data:  # as in records from before they were apart
        data = {**data, "method": method, "marks": [marks.removesuffix(")")]}
    record = convert(data, Record)
    json.dumps(data, ensure_ascii=False, allow_nan=False).encode()  # UTF-8, no NaN
    shaped([record.drops], dict[str, Amount | dict[Name, Amount]], "drops")
    for name, kind in (("beginning", Began), ("routing", Routing), ("git", Commit)):
        if (value := data.get(name)) is not None:
            shaped([value], kind, name)
    own, tasks = record.settings, len(record.success)
    captions = [own.get(n) for n in CAPTION if n != "env.suite" or own.get(n) is not None]
    free = [[*data.get(name, ())] for name in FREE_TEXT]
    listed = [v for k, v in data.items() if k not in FREE_TEXT]
    names: list[Any] = [*_texts([listed, free]), *captions, record.label]
    names += [record.source.get("training.suite")] if record.source else []
    pairs = [*record.votes.values(), *record.passes]
    counts = [own.get("evaluation.trials", 1), own.get("env.train_tasks") or 0]
    counts += [record.method_settings.get("max_capabilities", 0)]
    for name in names:
        if not (isinstance(name, str) and name.isprintable() and len(name) <= 200):
            raise Unreadable(f"{shown(name)} is no short printable text")
    for what, fine in (
        ("rule", record.rule in RULES),
        ("accounting", own.get("accounting", "strict") in CHARGED),
        ("base", len(record.base) == tasks),
        ("success", any(v is not None for v in record.success)),
        ("needs", len(record.needs) in (0, tasks)),
        ("worlds", len(record.worlds) in (0, tasks)),
        ("passes", len(record.passes) in (0, tasks)),
        ("passes or votes", all(p[0] <= p[1] for p in pairs)),
        ("training", all(p[2] is None or p[4] is not None for p in record.training)),
        ("drops", all(k in BY_KIND for k, v in record.drops.items() if isinstance(v, Mapping))),
        ("per_item", all(cost.keys() == set(PER_ITEM) for cost in record.per_item.values())),
        ("a count in the settings", all(type(n) is int and 0 <= n <= 2**53 for n in counts)),
    ):
        if not fine:
            raise Unreadable(f"`{what}` does not agree with the rest of it")
    return record


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in (*value, *value.values()) if isinstance(value, Mapping) else value:
            yield from _texts(part)


def as_line(record: Record) -> str:
    """A record as a line of a record file; whole successes as integers, to keep it small."""
    line = {f.name: getattr(record, f.name) for f in fields(record)}
    del line["row"], line["folder"]
    for name in LATER:
        if not line[name]:
            del line[name]
    for name in ("success", "base"):
        line[name] = [int(v) if v is not None and v == int(v) else v for v in line[name]]
    return json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n"
