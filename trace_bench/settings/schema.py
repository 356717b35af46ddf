"""The run's settings as frozen dataclasses, checked once when they enter the program.

`parse` turns the plain data that Hydra composed into `Settings`. A group that chooses a part
(`PartSettings`) has a few keys of its own; all other keys are the part's settings, declared by its
factory (`settings.registry`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trace_bench.core.checked import PLACE, build, number
from trace_bench.core.errors import UserError

P = TypeVar("P", bound="PartSettings")


@dataclass(frozen=True)
class PartSettings:
    """A part, chosen by its name or by its `factory`: "module:attribute" (in Python, also the
    object itself). `options` are the factory's settings; they may also be given beside these
    keys."""

    name: str
    factory: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvSettings(PartSettings):
    """The suite, and which of its splits are for training, development and evaluation.
    `train_tasks`: use only so many tasks of the training split, from the first. `python`: the
    interpreter for sandbox=process. `image`: the container image for sandbox=docker (null: the
    suite's own)."""

    suite: str | None = None
    python: str | None = None
    image: str | None = None
    train_split: str = "train"
    dev_split: str = "dev"
    eval_split: str = "test"
    train_tasks: int | None = field(default=None, metadata=number(1))


@dataclass(frozen=True)
class ModelSettings(PartSettings):
    """The base model: the folder of its weights, or a name on the hub. `served_as`: its name on
    the servers (null: its name, or its path if it has no other)."""

    served_as: str | None = None


@dataclass(frozen=True)
class PolicySettings(PartSettings):
    """How turns are generated. `batch`: live episodes. `threads`, `device`, `dtype`: of this
    process (policy=local, trainer=local); `dtype`: of the model's products, with `auto` bfloat16
    for a model of more than 64 million parameters where the processor has it. `context`: tokens per
    episode. `eval_temperature`: the sampling temperature of every evaluation. `max_turns`: turns of
    the agent per episode. `max_tokens`: tokens per turn."""

    batch: int = field(default=128, metadata=number(1))
    threads: int = field(default=1, metadata=number(1, 4096))
    context: int | None = field(default=None, metadata=number(2))
    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    eval_temperature: float = field(default=0.0, metadata=number(0))
    max_turns: int = field(default=20, metadata=number(1))
    max_tokens: int = field(default=96, metadata=number(1))


@dataclass(frozen=True)
class RoleSettings:
    """How a role besides the agent is played: by a `program` of this project, or by a model at an
    `endpoint`. All settings but `by` are for the endpoint. `max_tokens`: per answer. `tries`: how
    often to ask until an answer is usable (in episodes, by user, simulator and judge, the number
    is fixed). `retries`: of a failed request. `concurrency`: requests at once. `schema`:
    whether the server is sent the schema of an answer in JSON (`llm.roles`)."""

    by: Literal["program", "endpoint"] = "program"
    base_url: tuple[str, ...] | None = field(default=None, metadata=PLACE)
    model: str | None = None
    key_env: str | None = field(default=None, metadata=PLACE)
    temperature: float = field(default=0.0, metadata=number(0, 2))
    seed: int = field(default=42, metadata=number(0))
    max_tokens: int = field(default=2048, metadata=number(1))
    context: int = field(default=32000, metadata=number(512))
    tries: int = field(default=3, metadata=number(1))
    deadline: float = field(default=300.0, metadata=number(0.1) | PLACE)
    retries: int = field(default=5, metadata=number(0) | PLACE)
    concurrency: int = field(default=32, metadata=number(1) | PLACE)
    extra: Mapping[str, Any] | None = None
    schema: Literal["auto", "always", "never"] = "auto"


@dataclass(frozen=True)
class LLMSettings:
    """The roles besides the agent. `shared`: defaults that the roles' settings refer to."""

    user: RoleSettings = field(default_factory=RoleSettings)
    analyst: RoleSettings = field(default_factory=RoleSettings)
    generator: RoleSettings = field(default_factory=RoleSettings)
    reflector: RoleSettings = field(default_factory=RoleSettings)
    judge: RoleSettings = field(default_factory=RoleSettings)
    annotator: RoleSettings = field(default_factory=RoleSettings)
    simulator: RoleSettings = field(default_factory=RoleSettings)
    shared: Mapping[str, Any] | None = None

    @property
    def roles(self) -> dict[str, RoleSettings]:
        """The roles' settings by name."""
        return {
            "user": self.user,
            "analyst": self.analyst,
            "generator": self.generator,
            "reflector": self.reflector,
            "judge": self.judge,
            "annotator": self.annotator,
            "simulator": self.simulator,
        }


@dataclass(frozen=True)
class SandboxSettings:
    """Where environments run: `inline` is this process, `process` child processes, `docker`
    containers, `auto` Docker if an engine answers, else this process. `deadline` and `start` are in
    seconds, `memory` and `scratch` in MiB, `cpus` in cores, all per container."""

    name: Literal["inline", "auto", "process", "docker"]
    workers: int = field(default=1, metadata=number(1, 1024))
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
class EvaluationSettings:
    """The held-out evaluation. `limit`: use only so many tasks, for a quick look. `retries`: how
    often an episode is run again after a failure of the infrastructure. `yardsticks`: also train
    and evaluate the method's yardsticks (TRACE: one adapter on all synthetic environments).
    `routing`: also compare the router with the best choice for each task, held-out and development
    ones."""

    split: str = "test"
    trials: int = field(default=1, metadata=number(1, 10_000))
    limit: int | None = field(default=None, metadata=number(1))
    retries: int = field(default=1, metadata=number(0))
    yardsticks: bool = True
    routing: bool = True


@dataclass(frozen=True)
class Settings:
    """The settings of one run. `agent`: the run whose agent is the base agent. `max_lost`: the
    share of a call's episodes that may be lost before the run stops. `run_dir`: its folder.
    `runs_root`: the parent folder of runs without a `run_dir`."""

    env: EnvSettings
    method: PartSettings
    model: ModelSettings
    policy: PolicySettings
    trainer: PartSettings
    sandbox: SandboxSettings
    tracker: PartSettings
    evaluation: EvaluationSettings
    llm: LLMSettings = field(default_factory=LLMSettings)
    protocol: Literal["held_out", "paper"] = "held_out"
    accounting: Literal["strict", "paper"] = "strict"
    agent: str | None = None
    budget: int = field(default=640, metadata=number(0, 10_000_000))
    seed: int = field(default=0, metadata=number(0))
    checkpoints: tuple[int, ...] | None = field(default=None, metadata=number(0))
    max_lost: float = field(default=0.5, metadata=number(0, 1))
    run_dir: str | None = None
    runs_root: str = "runs"
    experiment: str | None = None
    dry_run: bool = False


PARTS: Mapping[str, type[PartSettings]] = {
    "env": EnvSettings,
    "method": PartSettings,
    "model": ModelSettings,
    "policy": PolicySettings,
    "trainer": PartSettings,
    "tracker": PartSettings,
}
"""The groups that choose a part."""


MOVED: Mapping[str, str] = {
    "method.route_share": "method.route.share",
    "method.route_examples": "method.route.examples",
    "method.route_tools": "method.route.tools",
    "method.route_top_k": "method.route.top_k",
    "method.route_threshold": "method.route.threshold",
    "method.route_others": "method.route.others",
    "method.route_l2": "method.route.l2",
    "method.route_weight": "method.route.weight",
    "method.route_density": "method.route.density",
    "method.gate_share": "method.route.share",
    "method.gate_rate": "method.route.rate",
    "method.gate_warm": "method.route.warm",
    "method.merge_weight": "method.route.weight",
}
"""Settings that have another name now: the old whole name, and the new one."""


def refuse_moved(name: str) -> None:
    """Raises UserError for a setting's old name, with the new one."""
    if (new := MOVED.get(name.replace(".options.", ".", 1))) is not None:
        raise UserError(f"`{name}` is now `{new}`. Change `{name}`.")


def parse(data: Mapping[str, Any]) -> Settings:
    """Checked settings from plain data. Raises UserError with the key, value and allowed values."""
    groups = {name: _gathered(cls, name, data[name]) for name, cls in PARTS.items() if name in data}
    settings = build(Settings, {**data, **groups})
    train, dev = settings.env.train_split, settings.env.dev_split
    held_out = settings.evaluation.split
    if settings.protocol == "held_out" and train in (dev, held_out):
        raise UserError(
            "protocol=held_out trains on other tasks than it reports, got "
            f"env.train_split={train}, env.dev_split={dev}, "
            f"evaluation.split={held_out}. Change one of them, or set `protocol=paper` to train "
            "and report on the same tasks (every table then says so)."
        )
    return settings


def _gathered(cls: type[P], group: str, data: Any) -> Any:
    """A group's settings; keys that are not the group's own are moved into `options`."""
    if not isinstance(data, Mapping):
        return data
    own = {f.name for f in dataclasses.fields(cls)}
    rest = {key: value for key, value in data.items() if key not in own}
    for key in rest:
        refuse_moved(f"{group}.{key}")
    options = data.get("options") or {}
    if isinstance(options, Mapping) and (twice := sorted(rest.keys() & options.keys())):
        raise UserError(
            f"`{group}.{twice[0]}` and `{group}.options.{twice[0]}` are the same setting. Give one."
        )
    known = {key: value for key, value in data.items() if key in own}
    return {**known, "options": {**rest, **options} if isinstance(options, Mapping) else options}
