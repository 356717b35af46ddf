"""What a record may hold. Strangers may have made the folders and files that records come from;
behind this check no table or figure needs to look again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trace_bench.core.run_files import PER_ITEM
from trace_bench.core.types import CHARGED
from trace_bench.results.rules import RULES

if TYPE_CHECKING:
    from trace_bench.results.records import Record

LONGEST = 200  # characters of a name
MOST = 2**53  # of anything that is counted
CAPTION = ("env.name", "env.suite", "evaluation.split", "protocol")
"""Settings that stand in captions."""
BY_KIND = ("lost", "rollouts_lost", "limits")
"""The drops that are counts by kind."""


def check(record: Record) -> None:
    """Raises ValueError that names the field of a record which cannot stand in a table."""
    json.dumps(vars(record), ensure_ascii=False, allow_nan=False).encode()  # UTF-8, no NaN
    _names("method", [record.method, record.label])
    _names("tasks and fingerprint", [record.tasks, record.fingerprint])
    _counts("budget, seed and tokens", [record.budget, record.tokens], [record.seed])
    _counts("parameters", [] if record.parameters is None else [record.parameters])
    _require("rule", record.rule in RULES, record.rule)
    _settings(record)
    _outcomes(record)
    _drops(record.drops)
    _names("capabilities", record.capabilities)
    _names("adapters", record.adapters)
    for name, values in (("floors", record.floors), ("wall_s", record.wall_s)):
        _names(name, _mapping(name, values))
        _require(name, all(_finite(v) for v in values.values()), values)
    for name, pair in _mapping("votes", record.votes).items():
        _names("votes", [name])
        _pairs("votes", [pair])
    for role, used in _mapping("usage", record.usage).items():
        _names("usage", [role])
        _counts("usage", _mapping("usage", used).values())
    for role, cost in _mapping("per_item", record.per_item).items():
        _names("per_item", [role])
        _require("per_item", set(_mapping("per_item", cost)) == set(PER_ITEM), cost)
        _require("per_item", all(map(_finite, cost.values())), cost)
    _mapping("versions", record.versions)
    if record.git is not None:
        _mapping("git", record.git)
        _names("git", [record.git.get("commit")])
        _require("git", "changed" in record.git, record.git)
    if record.beginning is not None:
        _beginning(_mapping("beginning", record.beginning))
    if record.routing is not None:
        _routing(_mapping("routing", record.routing))
    _require("curve", isinstance(record.curve, Sequence), record.curve)
    for point in record.training:
        _training(point)


def _settings(record: Record) -> None:
    settings = _mapping("settings", record.settings)
    _names("settings", settings)
    for name in CAPTION:
        value = settings.get(name)
        _names(name, ["none" if value is None and name == "env.suite" else value])
    _names("suite", [record.suite])
    _names("source", _mapping("source", record.source))
    if record.source:
        _names("training.suite", [record.source.get("training.suite")])
    _require("accounting", settings.get("accounting", "strict") in CHARGED, settings)
    own = _mapping("method_settings", record.method_settings)
    numbers = [settings.get("evaluation.trials", 1), settings.get("env.train_tasks") or 0]
    _counts("evaluation.trials and env.train_tasks", numbers)
    _counts("method.max_capabilities", [own.get("max_capabilities", 0)])


def _outcomes(record: Record) -> None:
    rollouts = _mapping("rollouts", record.rollouts)
    _names("rollouts", rollouts)
    _counts("rollouts", rollouts.values())
    for name, values in (("success", record.success), ("base", record.base)):
        fine = all(v is None or (_finite(v) and 0 <= v <= 1) for v in values)
        _require(name, fine and len(values) == len(record.success), values)
    _require("success", any(v is not None for v in record.success), "no task with a score")
    _require("similarity", _finite(record.similarity), record.similarity)
    _counts("needs", record.needs)
    _require("needs", len(record.needs) in (0, len(record.success)), len(record.needs))
    _pairs("passes", record.passes)
    _require("passes", len(record.passes) in (0, len(record.success)), len(record.passes))


def _drops(drops: Mapping[str, Any]) -> None:
    for name, value in _mapping("drops", drops).items():
        if isinstance(value, Mapping):
            _require("drops", name in BY_KIND, name)
            _names("drops", value)
            _counts("drops", value.values())
        else:
            _counts("drops", [value])


def _beginning(beginning: Mapping[str, Any]) -> None:
    _names("beginning", [beginning["sha256"]])
    _counts("beginning", [beginning["demonstrations"]])
    _counts("beginning", [] if beginning["rollouts"] is None else [beginning["rollouts"]])
    _require("beginning", isinstance(beginning["runs"], Sequence), beginning["runs"])
    for run in beginning["runs"]:
        _names("beginning", [_mapping("beginning", run)["method"], run["fingerprint"]])
        _counts("beginning", [run["demonstrations"]])
        _require("beginning", isinstance(run.get("marks", []), list), run)
        _names("beginning", run.get("marks", []))
        if run["rollouts"] is not None:
            _counts("beginning", _mapping("beginning", run["rollouts"]).values())


def _routing(routing: Mapping[str, Any]) -> None:
    known = [routing.get("agreement"), routing.get("agreement_decisive", math.nan)]
    for name in ("oracle_score", "single_score"):
        known.append(_mapping(f"routing.{name}", routing.get(name)).get("success", math.nan))
    _require("routing", all(v is None or _finite(v) for v in known), known)
    _require("routing", known[0] is not None, known)


def _training(point: Any) -> None:
    _require("training", isinstance(point, list | tuple) and len(point) == 5, point)
    rollouts, adapter, reward, *shares = point
    _counts("training", [rollouts])
    _names("training", [adapter])
    figures = [reward, *shares]
    _require("training", all(f is None or _finite(f) for f in figures), point)
    _require("training", reward is None or shares[1] is not None, point)


def _names(what: str, values: Iterable[Any]) -> None:
    """Texts that can stand in a table, a caption and a terminal."""
    for value in values:
        fine = isinstance(value, str) and len(value) <= LONGEST and value.isprintable()
        _require(what, fine, value)


def _counts(what: str, values: Iterable[Any], unbounded: Iterable[Any] = ()) -> None:
    """Whole numbers from 0."""
    for value in values:
        _require(what, _whole(value) and value <= MOST, value)
    for value in unbounded:
        _require(what, _whole(value), value)


def _pairs(what: str, pairs: Iterable[Any]) -> None:
    """Pairs [some, of so many]."""
    for pair in pairs:
        _require(what, isinstance(pair, list | tuple) and len(pair) == 2, pair)
        _require(what, all(map(_whole, pair)) and pair[0] <= pair[1] <= 10**6, pair)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    _require(what, isinstance(value, Mapping), value)
    found: Mapping[str, Any] = value
    return found


def _require(what: str, fine: bool, given: object) -> None:
    if not fine:
        raise ValueError(f"{what} cannot be {str(given)[:60]!r}")
