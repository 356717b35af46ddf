"""The run's settings as frozen dataclasses, checked once when they enter the program.

`parse` turns the plain data that Hydra composed into `Settings`. A group that chooses a part
(`PartSettings`) has a few keys of its own; all other keys are the part's settings, declared by its
factory (`settings.registry`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from trace_bench.core.checked import BY_MODEL, build
from trace_bench.core.errors import UserError
from trace_bench.core.roles import LLMSettings
from trace_bench.core.types import Meta, Natural, NotNegative, Positive, Share


@dataclass(frozen=True)
class PartSettings:
    """A part, chosen by its name or by its `factory`. All other keys of the group are settings of
    the factory, which may also be given as `options`."""

    name: str
    """The part's name, which the choice sets."""
    factory: Any = None
    """module:attribute: a class or function that makes the part, or the part itself (in Python, the
    object); null: the part of that name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a part of your own: env.options.size=40."""


@dataclass(frozen=True)
class EnvSettings(PartSettings):
    """The tasks, their tools and their scores."""

    suite: str | None = None
    """Which suite of that name; null: it has one. toolsandbox: embedded, or official: the benchmark
    itself, in a worker with its own packages."""
    python: str | None = None
    """sandbox=process: the interpreter that has the environment's packages; null: this one."""
    image: str | None = None
    """sandbox=docker: an image that has its code; null: the suite's own."""
    train_split: str = "train"
    """The tasks for training, by the suite's own name of the split. toolsandbox: train (64 tasks),
    train_large (2048 from the same generator) or dialogues (2400 of several user turns)."""
    dev_split: str = "dev"
    """The split for development: the curve's points, tuning (toolsandbox: 128 tasks)."""
    eval_split: str = "test"
    """The held-out split, for reporting only (toolsandbox: 387 tasks)."""
    train_tasks: Positive | None = None
    """The first so many training tasks only; null: all."""


@dataclass(frozen=True)
class ModelSettings(PartSettings):
    """The base model: the folder of its weights, or a name on the hub."""

    served_as: str | None = None
    """What servers call it; null: its name."""


@dataclass(frozen=True)
class PolicySettings(PartSettings):
    """The policy, which generates the agent's turns."""

    batch: Positive = 128
    """Live episodes; at servers, so many requests at once."""
    threads: Annotated[int, Meta(ge=1, le=4096)] = 1
    """CPU threads of this process (policy=local, trainer=local); another count changes rounding, so
    it belongs to the run. A second one gains the tiny model some 15 %, and costs it much more than
    that when another program needs the core."""
    context: Annotated[int, Meta(ge=2)] | None = field(default=None, metadata=BY_MODEL)
    """Tokens of one episode; null: what suits the model (docs/models.md); of a small one, what it
    can hold, at most 1024 (policy=local), or what the servers have."""
    device: str = "cpu"
    """cpu, or cuda where there is one (policy=local, trainer=local)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the model multiplies in (policy=local, trainer=local): float32, bfloat16, or auto:
    bfloat16 for a model of more than 64 million parameters, where the processor has it."""
    eval_temperature: NotNegative = 0.0
    """Sampling temperature of every evaluation; 0 is greedy."""
    max_turns: Positive = 20
    """Turns of the agent in one episode."""
    max_tokens: Positive = field(default=96, metadata=BY_MODEL)
    """Tokens of one turn, thoughts included; null: what suits the model, 96 of a small one."""
    thinking: bool | None = field(default=None, metadata=BY_MODEL)
    """Whether the model is to think before it answers, for templates with `enable_thinking`; null:
    what suits the model, else as the template does by itself. Nobody but the model sees its
    thoughts."""
    thoughts: Literal["own", "keep"] = "own"
    """Thoughts of earlier turns in what the model reads. own: as its template has them; where that
    drops them, each stretch of a conversation is a training sequence of its own. keep: all stay,
    and a conversation is one sequence."""


@dataclass(frozen=True)
class SandboxSettings:
    """Where environments run. The limits are those of one container.

    `inline`: this process, without isolation; suitable for the project's own environments, not for
    code from elsewhere. `process`: child processes with this user's rights, which are no security
    boundary. `docker`: containers without network and privileges; `python -m
    trace_bench.sandbox.build` makes the images. `podman`: the same without a daemon.
    `bubblewrap`: namespaces on the files of an image, on machines without either; what it cannot
    limit there is logged."""

    name: Literal["inline", "process", "docker", "podman", "bubblewrap"]
    """inline, process, docker, podman or bubblewrap."""
    workers: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Containers or child processes for this run, each with many episodes."""
    deadline: Annotated[float, Meta(ge=0.1)] = 30.0
    """Seconds for one batch of steps."""
    start: Annotated[float, Meta(ge=1)] = 60.0
    """Seconds for a worker's greeting."""
    retries: Natural = 2
    """Further attempts for an episode whose worker was lost."""
    memory: Annotated[int, Meta(ge=64)] = 1024
    """MiB a container, without swap."""
    cpus: Annotated[float, Meta(ge=0.1)] = 1.0
    """Cores a container."""
    processes: Annotated[int, Meta(ge=8)] = 128
    """Most processes in a container."""
    allow_untrusted: bool = False
    """Also run code of models where no container keeps it in."""
    roots: str = "~/.cache/trace_bench/roots"
    """Folder with the files of images, for sandboxes that run on a folder: NAME/latest each."""


@dataclass(frozen=True)
class EvaluationSettings:
    """The held-out evaluation at the end of the run."""

    split: str = "test"
    """The split whose tasks are reported; the suite's own choice by default."""
    trials: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Episodes of each task."""
    limit: Positive | None = None
    """Use only so many tasks, from the first; null: all."""
    retries: Natural = 1
    """How often an episode is run again after a failure of the infrastructure (all attempts are
    kept)."""
    yardsticks: bool = True
    """Also train the method's yardsticks, each with its own ledger (TRACE: one adapter on all its
    synthetic environments, to show the value of separate adapters and routing)."""
    routing: bool = True
    """Also compare the router with the best choice for each held-out task, for which every adapter
    is evaluated alone."""


@dataclass(frozen=True)
class Settings:
    """The settings of one run."""

    env: EnvSettings
    """The tasks, their tools and their scores."""
    method: PartSettings
    """The method that trains the agent."""
    model: ModelSettings
    """The base model."""
    policy: PolicySettings
    """The policy, which generates the agent's turns."""
    trainer: PartSettings
    """Turns rollouts into adapters."""
    sandbox: SandboxSettings
    """Where environments run."""
    tracker: PartSettings
    """Where metrics go."""
    budget: Annotated[int, Meta(ge=0, le=10_000_000)] = 640
    """Rollouts the method may spend, analysis, calibration and training together. Every episode in
    which the agent acts is one; held-out evaluation is not charged."""
    agent: str | None = None
    """The agent to begin with, not the bare model: a finished run's folder, or one with an
    agent.json. Its prompt, adapters and router are the base agent; what was spent on
    it stands beside this run's own rollouts in every table. null: the model alone."""
    seed: Natural = 0
    """The seed of everything random: sampling, training, the order of tasks. The same settings and
    seed give the same run."""
    protocol: Literal["held_out", "paper"] = "held_out"
    """Which tasks are used for training and for reporting: `held_out` (disjoint sets) or `paper`
    (the same tasks, as in the paper; every table says so)."""
    accounting: Literal["strict", "paper"] = "strict"
    """Which rollouts are charged to the budget: `strict` all of a method's, `paper` all but TRACE's
    analysis and calibration (as the paper's authors appear to count; every table says so)."""
    checkpoints: tuple[Natural, ...] | None = None
    """Rollout counts at which the current agent is evaluated on `env.dev_split`, free of charge,
    for instance [320,640]; null: the quarters of the budget; []: none. Each point evaluates the
    last agent that had spent at most so many rollouts. The points are in summary.json under
    `curve`."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """The held-out evaluation at the end of the run."""
    max_lost: Share = 0.5
    """The run stops when more than this share of the episodes of one call of a method, or of one
    agent's evaluation, is lost to failures of environment, sandbox, policy or user; 1: never. The
    same command resumes the run and runs the lost episodes again."""
    run_dir: str | None = None
    """The run's folder; null: <runs_root>/<env>/<method>/<fingerprint of the settings>. The same
    command resumes what is there."""
    runs_root: str = "runs"
    """The parent folder of runs without a run_dir, including those of sweeps."""
    experiment: str | None = None
    """Several of these settings under one name, from the file of that name in experiment/."""
    dry_run: bool = False
    """Print what the run would do and need, and stop."""
    rehearsal: bool = False
    """A run of python -m trace_bench.rehearse. Scores of the suite's own tasks are drawn by lot, so
    that groups differ whatever the model can, and no table takes the run."""
    llm: LLMSettings = field(default_factory=LLMSettings)
    """Models or programs in the other roles (user, analyst, generator, reflector, judge, annotator,
    simulator)."""


PARTS: Mapping[str, type[PartSettings]] = {
    "env": EnvSettings,
    "method": PartSettings,
    "model": ModelSettings,
    "policy": PolicySettings,
    "trainer": PartSettings,
    "tracker": PartSettings,
}
"""The groups that choose a part."""


def parse(data: Mapping[str, Any]) -> Settings:
    """Checked settings from plain data. Raises UserError with the key, value and allowed values."""
    groups = {name: _gathered(cls, name, data[name]) for name, cls in PARTS.items() if name in data}
    settings = build(Settings, {**data, **groups})
    settings = replace(settings, llm=settings.llm.with_shared())
    train, dev = settings.env.train_split, settings.env.dev_split
    held_out = settings.evaluation.split
    if settings.protocol == "held_out" and train in (dev, held_out):
        raise UserError(
            f"protocol=held_out trains on other tasks than it reports, got env.train_split={train},"
            f" env.dev_split={dev}, evaluation.split={held_out}. Change one of them, or set "
            "`protocol=paper` to train and report on the same tasks (every table then says so)."
        )
    return settings


def _gathered(cls: type[PartSettings], group: str, data: Any) -> Any:
    """A group's settings; keys that are not the group's own are moved into `options`."""
    if not isinstance(data, Mapping):
        return data
    declared = {f.name for f in dataclasses.fields(cls)}
    rest = {key: value for key, value in data.items() if key not in declared}
    options = data.get("options") or {}
    if isinstance(options, Mapping) and (twice := sorted(rest.keys() & options.keys())):
        raise UserError(
            f"`{group}.{twice[0]}` and `{group}.options.{twice[0]}` are the same setting. Give one."
        )
    every = {**rest, **options} if isinstance(options, Mapping) else options
    return {**{key: value for key, value in data.items() if key in declared}, "options": every}
