"""What a run folder says of its run: its settings in config.yaml, which may be damaged or meant to
do harm, and summary.json of a finished one: its figures, what was lost, and what it was.

The names of the fields are the keys of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from trace_bench.core.decode import Limits, Unreadable, decode, fault_of
from trace_bench.core.errors import UserError
from trace_bench.core.run_files import REPAIRS, SUMMARY
from trace_bench.core.store import read_bytes, repair
from trace_bench.core.types import Amount, Figure, Meta, Name, Outcome, Share, StopReason

ByName = Mapping[Name, Amount]
Plain = Mapping[str, Any]
SPARSE = {"sparse": True}
SHOWN = ("model", "temperature", "seed")  # of a role that a model plays
GRPO = "grpo"
"""The algorithm of every method that trains, unless another is set."""

# Aliases count each time: a few lines of them may stand for billions.
LIMITS = Limits(2**20, depth=50, items=100_000)


@dataclass(frozen=True)
class AgentScore:
    """An agent on the held-out tasks: means over tasks, `interval` of the success, `n` tasks. None
    for all but `failures` (lost episodes, which are in no other number) if every one was lost."""

    success: Share | None
    similarity: Share | None = None
    n: Amount = 0
    interval: tuple[Figure, Figure] | None = None
    failures: Amount = 0


@dataclass(frozen=True, kw_only=True)
class CurvePoint(AgentScore):
    """On the development tasks, after `rollouts`; `checkpoint`: those that were due."""

    checkpoint: Amount
    rollouts: Amount


@dataclass(frozen=True)
class Interval:
    value: Figure
    low: Figure
    high: Figure


@dataclass(frozen=True)
class PairedDifference(Interval):
    """Mean of `treated - control` over the same tasks, its interval and a two-sided p-value."""

    p_value: Figure
    n: Amount
    discordant: Amount  # tasks on which the two differ


@dataclass(frozen=True)
class AgentRow:
    """An agent in the closing table; `difference` to the base agent, None for itself."""

    name: str
    success: Figure
    low: Figure
    high: Figure
    similarity: Figure
    n: Amount
    failures: Amount
    difference: PairedDifference | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The trained agent and the base agent on the same tasks; `tasks`: of a world, its own."""

    score: AgentScore
    base_score: AgentScore
    difference: PairedDifference | None
    tasks: tuple[str, ...] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """A router beside the best choice of adapter for each task."""

    agreement: Figure
    """The share of tasks on which the router's choice scores no less than the oracle."""
    decisive: Amount = 0  # tasks on which the choices differ in score
    agreement_decisive: Figure | None  # the same among those; None when there are none
    single: Name = ""  # the adapter (or "base model") that is best on all tasks alone
    oracle_score: AgentScore
    single_score: AgentScore


@dataclass(frozen=True)
class EarlierRun:
    """What is kept of a run that made an agent; `rollouts` by purpose, None where unknown."""

    method: Name
    env: str
    seed: Amount
    budget: Amount
    fingerprint: Name
    rollouts: ByName | None
    demonstrations: Amount
    marks: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Began:
    """The agent that the run began with, the runs that made it, and what they spent."""

    sha256: Name
    runs: tuple[EarlierRun, ...]
    rollouts: Amount | None
    demonstrations: Amount


@dataclass(frozen=True)
class TrainingSuite:
    suite: Name
    data: Plain


@dataclass(frozen=True)
class Borrowed:
    """The suite whose tasks the held-out ones are, where the run trains on another.
    `training_settings`: the groups of settings that held-out episodes do not depend on."""

    env: Plain
    split: str
    training: TrainingSuite
    training_settings: tuple[str, ...]


@dataclass(frozen=True)
class TrainedApart:
    """A yardstick."""

    title: str
    rollouts: ByName


@dataclass
class EpisodeCounts:
    """How many episodes and turns, and what was lost by boundary, cut off or unreadable."""

    episodes: Amount = 0
    lost: dict[Name, Amount] = field(default_factory=dict)
    context: Amount = 0
    turn_limit: Amount = 0
    turns: Amount = 0
    malformed: Amount = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Adds episodes: of the held-out ones, the last attempts."""
        for o in outcomes:
            self.episodes += 1
            if o.error is not None and o.lost:
                boundary = o.error.partition(":")[0]
                self.lost[boundary] = self.lost.get(boundary, 0) + 1
            self.context += o.stop is StopReason.CONTEXT_LIMIT
            self.turn_limit += o.stop is StopReason.TURN_LIMIT
            self.turns += o.turns
            self.malformed += o.malformed


PHASES = ("training", "fine-tuning")  # the phases whose lines of metrics are about training


@dataclass
class TrainingCounts:
    """Sums over the metrics of training iterations, None where no trainer has reported it.
    `constant`: groups without an advantage; `apart`: the largest mean difference in log-probability
    between sampler and trainer; `alarms`: how often it was more than the trainer allows."""

    groups: Amount | None = None
    constant: Amount | None = None
    steps: Amount | None = None
    apart: Figure | None = None
    alarms: Amount = 0
    update_norm: Figure | None = None

    def log(self, values: Mapping[str, Any]) -> None:
        """Adds one line of metrics, unless it is of another phase than training."""
        if values.get("phase") not in PHASES:
            return
        groups, share, steps = (values.get(k) for k in ("groups", "constant_share", "steps"))
        if (apart := values.get("logprob_difference_mean")) is not None:
            self.apart = max(self.apart or 0.0, apart)
        self.alarms += bool(values.get("logprob_alarm"))
        if (norm := values.get("update_norm")) is not None:
            self.update_norm = max(self.update_norm or 0.0, norm)
        if groups is not None and share is not None:
            self.groups = (self.groups or 0) + groups
            self.constant = (self.constant or 0) + round(share * groups)
        if steps is not None:
            self.steps = (self.steps or 0) + steps


@dataclass(kw_only=True)
class Health(TrainingCounts):
    """`tracker`: its failure."""

    method: EpisodeCounts
    evaluation: EpisodeCounts
    tracker: str | None = None


@dataclass(frozen=True)
class Commit:
    commit: Name
    changed: bool


@dataclass(frozen=True, kw_only=True)
class Summary(Compared):
    """`unscored`: agents without a score, which a run with a result does not have; `marks`: remarks
    that every table must show; `spent`: rollouts that were charged to the budget, `unspent`: those
    that were left of it, and why; `worlds`: the scores in each of several worlds; `hashes`: of the
    files that it was made from."""

    complete: bool
    unscored: tuple[str, ...] = ()
    method: Name
    learns: bool
    marks: tuple[Name, ...] = ()
    env: Name
    suite: Name | None
    suite_name: Name = ""  # as the suite calls itself, where the settings do not name it
    suite_data: Plain = field(default_factory=dict)
    borrowed: Borrowed | None = None
    models: Mapping[Name, Plain] = field(default_factory=dict)
    split: str
    train_split: str = ""
    dev_split: str = ""
    protocol: str
    accounting: Literal["strict", "paper"] = "strict"
    policy: str = ""
    model: str = ""
    algorithm: Name = ""  # that trained; "" where nothing was trained
    parameters: Amount | None = None
    experiment: str | None = None
    rehearsal: bool = False
    seed: Annotated[int, Meta(ge=0)]
    budget: Amount
    rollouts: ByName
    spent: Amount
    unspent: Amount
    why_unspent: str = ""
    demonstrations: Amount = 0
    beginning: Began | None = None
    yardsticks: Mapping[Name, TrainedApart] = field(default_factory=dict)
    worlds: Mapping[str, Compared] = field(default_factory=dict)
    table: tuple[AgentRow, ...]
    routing: Routing | None
    usage: Mapping[Name, Plain] = field(default_factory=dict)  # requests to models, by role
    health: Health
    curve: tuple[CurvePoint, ...]
    curve_caveat: str | None
    capabilities: tuple[Name, ...] | None
    adapters: tuple[Name, ...]
    wall_s: Mapping[Name, Figure]
    versions: Plain
    machine: Plain = field(default_factory=dict)
    git: Commit | None
    code: tuple[Name, ...] = ()  # hashes of the package: more than one if other code resumed it
    origins: Mapping[str, Plain] = field(default_factory=dict)
    fingerprint: Name
    hashes: Mapping[str, str | None]

    @property
    def titled(self) -> str:
        """The method, with an algorithm that is not its own."""
        return titled(self.method, self.algorithm)

    @property
    def world(self) -> str:
        """Its environment and suite, as the settings name them."""
        return "/".join(name for name in (self.env, self.suite) if name)

    @property
    def own_rollouts(self) -> dict[str, int]:
        """Those of the method by purpose."""
        return {k: v for k, v in self.rollouts.items() if k != "evaluation"}

    @property
    def lost(self) -> int:
        return sum(self.health.evaluation.lost.values())


def titled(method: str, algorithm: str) -> str:
    """What tables call a method that the algorithm has trained ("": none has)."""
    return method if algorithm in ("", GRPO) else f"{method}, {algorithm}"


def read_settings(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError for anything else, for what is no plain data,
    and for a file that is too large, too deep, or stands for too many values."""
    import yaml

    try:
        data = read_bytes(path)
        if len(data) > LIMITS.size:
            raise ValueError(f"{len(data)} bytes; allowed: {LIMITS.size}")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _check_depth(yaml.parse(data.decode(), Loader=loader))  # too deep a file ends the process
        value = yaml.load(data.decode(), Loader=loader)
        if not isinstance(value, dict):
            raise ValueError("no settings")
        if fault := fault_of(value, LIMITS):
            raise ValueError(fault)
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read ({why}). {repair(path)}") from error
    return value


def _check_depth(events: Iterable[Any]) -> None:
    """Reads the file's events, which takes no recursion. Raises ValueError."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > LIMITS.depth:
            raise ValueError(f"deeper than {LIMITS.depth}")


def read_summary(folder: Path) -> Summary | None:
    """The summary of a finished run, else None. Raises UserError for a damaged one."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        summary = decode(read_bytes(path), Summary)
    except Unreadable as error:
        raise UserError(f"{path} is damaged ({error}). {REPAIRS[SUMMARY]}") from error
    return summary if summary.complete else None


def facts(about: Mapping[str, Any], played: Mapping[str, Mapping[str, Any]]) -> str:
    """What a suite says about itself as one line, which stands with every table. `played`: the
    models in roles; a fact that is named like a role names its model, too."""
    parts = []
    for name, value in about.items():
        if value in ("", None, [], {}):
            continue
        text = f"{name.replace('_', ' ')}: {value}"
        if name in played:
            model = played[name]
            text += " (" + ", ".join(f"{k} {model[k]}" for k in SHOWN if k in model) + ")"
        parts.append(text)
    return "; ".join(parts)
