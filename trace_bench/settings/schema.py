"""The run's settings as frozen dataclasses, checked once when they enter the program.

`parse` turns the plain data that Hydra composed into `Settings`; an unknown key, a wrong type or a
value that is not allowed is refused with a message that names the key and what is allowed. The
settings of methods and trainers are declared beside their code and checked by it.
"""

from __future__ import annotations

import dataclasses
import types as pytypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trace_bench.core.errors import UserError, unknown

T = TypeVar("T")

Augmentation = Literal[
    "none",
    "distractors_3",
    "distractors_10",
    "all_tools",
    "scrambled_names",
    "scrambled_descriptions",
    "scrambled_arg_descriptions",
    "scrambled_arg_types",
]


Split = Literal["train", "train_large", "dev", "test", "fit", "base", "small", "full"]


def number(low: float, high: float = float("inf")) -> dict[str, float]:
    """Field metadata: the range that is allowed, ends included."""
    return {"low": low, "high": high}


@dataclass(frozen=True)
class EnvSettings:
    """Which tasks: a suite of an environment and the roles of its splits. `train_tasks` takes the
    first tasks of the training split only. `domain` and `solo` are tau2's, `source` is the official
    ToolSandbox's checkout, `python` the interpreter of `sandbox=process`."""

    name: Literal["toolsandbox", "tau2"]
    suite: Literal["embedded", "official", "airline", "retail", "telecom"] = "embedded"
    domain: Literal["airline", "retail", "telecom"] | None = None
    solo: bool = False
    source: str | None = None
    python: str | None = None
    train_split: Split = "train"
    dev_split: Split = "dev"
    eval_split: Split = "test"
    train_tasks: int | None = field(default=None, metadata=number(1))
    augmentation: Augmentation = "none"


@dataclass(frozen=True)
class ModelSettings:
    """The base model. `name` is what servers know it by (policy=openai; for `hf` that is `path`);
    its weights are in `path`, a folder or a name on the hub: None means the shipped ones for
    `tiny`, else `name`."""

    name: str
    path: str | None = None


@dataclass(frozen=True)
class PolicySettings:
    """How turns are made. `batch`: live episodes. `threads` and `device` are the local policy's,
    `context` (tokens of an episode) its and trainer=verl's; `base_url` (one or several), `key_env`
    (the environment variable that holds the key), `deadline` (seconds), `retries` and `extra`
    (further fields of every request) are openai's."""

    name: Literal["local", "openai", "idle", "random", "reference"]
    batch: int = field(default=128, metadata=number(1))
    threads: int = field(default=1, metadata=number(1))
    context: int | None = field(default=None, metadata=number(2))
    device: str = "cpu"
    temperature: float = field(default=1.0, metadata=number(0))
    eval_temperature: float = field(default=0.0, metadata=number(0))
    max_turns: int = field(default=20, metadata=number(1))
    max_tokens: int = field(default=96, metadata=number(1))
    base_url: tuple[str, ...] | None = None
    key_env: str | None = None
    deadline: float = field(default=120.0, metadata=number(0.1))
    retries: int = field(default=5, metadata=number(0))
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RoleSettings:
    """Who plays a role besides the agent: a `program` of this project, or a model at an `endpoint`.
    Everything but `by` is the endpoint's; `max_tokens` of one answer, `tries` for an answer that
    cannot be used, `retries` of a request that fails, `concurrency` requests at once."""

    by: Literal["program", "endpoint"] = "program"
    base_url: tuple[str, ...] | None = None
    model: str | None = None
    key_env: str | None = None
    temperature: float = field(default=0.0, metadata=number(0, 2))
    seed: int = field(default=42, metadata=number(0))
    max_tokens: int = field(default=2048, metadata=number(1))
    context: int = field(default=32000, metadata=number(512))
    tries: int = field(default=3, metadata=number(1))
    deadline: float = field(default=300.0, metadata=number(0.1))
    retries: int = field(default=5, metadata=number(0))
    concurrency: int = field(default=32, metadata=number(1))
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class LLMSettings:
    """`shared` is where the roles' settings usually point to; it plays no role itself."""

    user: RoleSettings = field(default_factory=RoleSettings)
    analyst: RoleSettings = field(default_factory=RoleSettings)
    generator: RoleSettings = field(default_factory=RoleSettings)
    reflector: RoleSettings = field(default_factory=RoleSettings)
    judge: RoleSettings = field(default_factory=RoleSettings)
    shared: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class GrpoSettings:
    """`method=grpo`: which number of the score is the reward."""

    reward: Literal["similarity", "success"] = "similarity"


@dataclass(frozen=True)
class UntargetedSettings:
    """`method=untargeted`: tasks of each environment, their share of contrast cases, the reward; a
    folder of environments in the AgentWorldModel format, and how many of them."""

    environments: str | None = None
    scenarios: int = field(default=16, metadata=number(1))
    synthetic_tasks: int = field(default=256, metadata=number(1))
    contrast_share: float = field(default=0.20, metadata=number(0, 1))
    reward: Literal["similarity", "success"] = "similarity"


@dataclass(frozen=True)
class SandboxSettings:
    """Where environments run: `inline` is this process, `process` child processes, `docker`
    containers, `auto` Docker where an engine answers and this process elsewhere. Seconds for
    `deadline` and `start`, MiB for `memory` and `scratch`, cores for `cpus`, all per container."""

    name: Literal["inline", "auto", "process", "docker"]
    workers: int = field(default=1, metadata=number(1))
    deadline: float = field(default=30.0, metadata=number(0.1))
    start: float = field(default=60.0, metadata=number(1))
    retries: int = field(default=2, metadata=number(0))
    memory: int = field(default=1024, metadata=number(64))
    cpus: float = field(default=1.0, metadata=number(0.1))
    processes: int = field(default=128, metadata=number(8))
    scratch: int = field(default=64, metadata=number(1))
    allow_untrusted: bool = False
    tag: str = "latest"


@dataclass(frozen=True)
class TrackerSettings:
    """Where metrics go, besides metrics.jsonl. `project` and `mode` are W&B's."""

    name: Literal["jsonl", "wandb"]
    project: str = "trace_bench"
    mode: Literal["offline", "online"] = "offline"


@dataclass(frozen=True)
class EvaluationSettings:
    """The held-out evaluation. `limit` takes the first tasks only (for a quick look); `retries`:
    how often an episode that the infrastructure lost is played again; `joint` also trains and
    evaluates TRACE's yardstick of one adapter on all synthetic environments; `routing` measures
    the router against the oracle on the development tasks too."""

    split: str = "test"
    trials: int = field(default=1, metadata=number(1))
    limit: int | None = field(default=None, metadata=number(1))
    retries: int = field(default=1, metadata=number(0))
    joint: bool = True
    routing: bool = True


@dataclass(frozen=True)
class Settings:
    """One run. `method` and `trainer` stay plain here: their owners check them (see config.py)."""

    env: EnvSettings
    method: Mapping[str, Any]
    model: ModelSettings
    policy: PolicySettings
    trainer: Mapping[str, Any]
    sandbox: SandboxSettings
    tracker: TrackerSettings
    evaluation: EvaluationSettings
    llm: LLMSettings = field(default_factory=LLMSettings)
    protocol: Literal["held_out", "paper"] = "held_out"
    accounting: Literal["strict", "paper"] = "strict"
    budget: int = field(default=640, metadata=number(0))
    seed: int = field(default=0, metadata=number(0))
    checkpoints: tuple[int, ...] | None = field(default=None, metadata=number(0))
    run_dir: str | None = None
    experiment: str | None = None
    dry_run: bool = False


def parse(data: Mapping[str, Any]) -> Settings:
    """Settings from plain data. Raises UserError naming the key, the value and what is allowed."""
    settings = build(Settings, data)
    train, dev, held_out = (
        settings.env.train_split,
        settings.env.dev_split,
        settings.evaluation.split,
    )
    allowed = get_args(get_type_hints(EnvSettings)["eval_split"])
    if held_out not in allowed:
        raise unknown("value", held_out, allowed, "evaluation.split")
    official = settings.env.suite == "official"
    overlap = settings.env.name == "tau2" and held_out in ("base", "full", "small")
    trains = settings.method.get("name") != "base"
    if (official or overlap) and trains and settings.protocol == "held_out":
        why = "it has no training tasks of its own" if official else "the split holds them"
        raise UserError(
            f"env.suite={settings.env.suite} with evaluation.split={held_out} reports on tasks "
            f"that are trained on ({why}). Set `protocol=paper` to do so and be marked so"
            + ("." if official else ", or evaluation.split=test.")
        )
    if settings.protocol == "held_out" and train in (dev, held_out):
        raise UserError(
            "protocol=held_out trains on other tasks than it reports, got "
            f"env.train_split={train}, env.dev_split={dev}, "
            f"evaluation.split={held_out}. Change one of them, or set `protocol=paper` to train "
            "and report on the same tasks (and be marked so)."
        )
    return settings


def build(cls: type[T], data: Any, path: str = "") -> T:
    """An instance of the dataclass `cls` from plain data, every field checked."""
    if not isinstance(data, Mapping):
        raise UserError(f"`{path}` is {data!r}; allowed: a group of settings.")
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise unknown("key", _join(path, str(key)), fields, _join(path, str(key)))
    values = {}
    for name, spec in fields.items():
        where = _join(path, name)
        if name in data:
            values[name] = _convert(hints[name], data[name], where, spec.metadata)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise UserError(f"the setting `{where}` is missing.")
    return cls(**values)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _convert(hint: Any, value: Any, path: str, metadata: Mapping[str, Any]) -> Any:
    """`value` as the annotated type, or a UserError that says what is allowed."""
    origin = get_origin(hint)
    if origin in (Union, pytypes.UnionType):
        if value is None:
            return None
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return _convert(inner, value, path, metadata)
    if origin is Literal:
        if value not in get_args(hint):
            raise unknown("value", value, get_args(hint), path)
        return value
    if origin is tuple:
        if isinstance(value, str) and get_args(hint)[0] is str:
            value = [value]
        if not isinstance(value, list | tuple):
            raise _wrong(path, value, "a list, such as [320,640]")
        return tuple(_convert(get_args(hint)[0], v, path, metadata) for v in value)
    if dataclasses.is_dataclass(hint):
        return build(hint, value, path)  # type: ignore[arg-type]
    if origin is Mapping or hint is Mapping or origin is not None:
        if not isinstance(value, Mapping):
            raise _wrong(path, value, "a group of settings")
        return dict(value)
    return _scalar(hint, value, path, metadata)


def _scalar(hint: Any, value: Any, path: str, metadata: Mapping[str, Any]) -> Any:
    low = metadata.get("low", float("-inf"))
    high = metadata.get("high", float("inf"))
    kinds = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    allowed = kinds[hint]
    if "low" in metadata:
        allowed += f" from {low:g}" + ("" if high == float("inf") else f" to {high:g}")
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(path, value, allowed)
    if "low" in metadata and not low <= value <= high:
        raise _wrong(path, value, allowed)
    return hint(value)


def _wrong(path: str, value: object, allowed: str) -> UserError:
    return UserError(f"{path}={value!r} is not allowed; allowed: {allowed}. Change `{path}`.")
