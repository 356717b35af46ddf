"""The description of a training job for verl's processes: one folder, written before they start,
on storage that all machines share:

    job.json      this file's `JobSpec`
    tasks.parquet one row per task
    start/        the adapter with which training begins
    episodes/     the workers' episodes, one file per process
    checkpoints/  verl's checkpoints
    verl.log      the output of the processes
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trace_bench.core.checked import build
from trace_bench.core.decode import convert
from trace_bench.core.store import read_json, stable_seed, write_json
from trace_bench.core.types import AgentSpec, Task
from trace_bench.trainers.course import Course
from trace_bench.trainers.record import start_of, with_version
from trace_bench.trainers.settings import VerlSettings

JOB_VARIABLE = "TRACE_BENCH_VERL_JOB"  # the environment variable with the path of the folder

CPU_ROLLOUT = "trace_bench"  # the rollout server on a CPU, by its name in verl's settings

NOTHING = -1  # the adapter version of a placeholder for an episode that cannot be trained on

ESTIMATOR = "trace_bench"  # the estimator of advantages, by its name in verl's settings

LOSS = "trace_bench"  # the loss of tokens, by its name in verl's settings (`losses.policy_loss`)

STEPS = "trace_bench_steps_max"
"""The metric with the number of an iteration's optimizer steps that had a gradient. verl reduces a
metric of this name by its largest value: it is counted up from step to step."""

RATE = "trace_bench_rate"  # the extra field of a batch with the learning rate of its iteration

MISMATCH = tuple(f"trace_bench/logprob_difference_{name}" for name in ("mean", "max", "kl"))
"""The metrics with the fields of `grpo.Mismatch`."""

CALL, FIRST = "call", "first"
"""The extra fields of a prompt: the call of its group's episodes, and the index of the first."""

HINT, REFERENCE = "hint", "reference"
"""The extra fields of a task: the hint that some of its rollouts have (`course.hint`), and its
reference's messages as JSON, for an algorithm that is given them; else empty."""

TAUGHT = "trace_bench/taught"  # the metric: how many of an iteration's rollouts a teacher has read

CREDIT = "trace_bench_episode"  # the extra field of a row: its part in advantages (`grpo.packed`)

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class JobSpec:
    """One training job. `settings`: the run's, as plain data. `suites`: the function that builds
    the run's suites from them in another process ("module:function"). `seed`: the run's seed, from
    which episodes' seeds are derived; `job_seed`: the job's, which puts its tasks in order.
    At most `iterations` have `groups` groups each: fewer, and larger ones, if constant groups are
    sampled again. Iteration i uses adapter version i; version 0 is the agent's own adapter, or the
    base model."""

    name: str
    run: str
    seed: int
    reward: str
    agent: AgentSpec
    trainer: VerlSettings
    settings: Mapping[str, Any]
    suites: str
    iterations: int
    groups: int
    context: int
    max_turns: int
    max_tokens: int
    thinking: bool | None = None
    thoughts: Literal["own", "keep"] = "own"
    sources: tuple[Mapping[str, Any], ...] = ()
    assignment: Mapping[str, Any] | None = None  # `protocols.TrainingJob`
    job_seed: int = 0
    max_seconds: float | None = None

    def course(self, tasks: Sequence[Task]) -> Course:
        """Which tasks come next. The run's process and verl's trainer follow it, each by itself,
        from the rewards of the same episodes."""
        recipe = replace(self.trainer, groups=self.groups)
        rollouts = self.iterations * self.groups * self.trainer.group_size
        return Course(tasks, recipe, self.job_seed, rollouts, self.name)

    def call(self, iteration: int) -> str:
        """The name of an iteration's rollouts in the ledger, as with trainer=local. Where constant
        groups are sampled again, /again1 and so on follow it."""
        return f"train/{self.name}/iter{iteration:04d}"

    def when(self, call: str) -> tuple[int, int]:
        """(iteration, how often its constant groups were sampled again before) of training's
        rollouts; (-1, 0) of others."""
        found = re.fullmatch(rf"{re.escape(self.call(0)[:-4])}(\d+)(?:/again(\d+))?", call)
        return (int(found[1]), int(found[2] or 0)) if found else (-1, 0)

    def validation(self, step: int) -> str:
        """The name of verl's own validation after so many iterations."""
        return f"validate/{self.name}/{step:04d}"

    def episode_seed(self, call: str, index: int) -> int:
        """The seed of the episode's random stream, the same as in `Lab.rollouts`."""
        return stable_seed(self.seed, call, index)

    def version(self, iteration: int) -> str | None:
        """The adapter for an iteration's rollouts; None is the base model."""
        if iteration:
            return f"{self.name}@{iteration:04d}"
        start = start_of(self.agent)
        return None if start is None else start.name

    def acting(self, iteration: int, folder: Path) -> AgentSpec:
        """The agent for an iteration's rollouts; after the last iteration, the result. `folder`
        holds the versions of the adapter."""
        if not iteration:
            return self.agent
        return with_version(self.agent, self.name, folder / f"{iteration:04d}")

    def write(self, folder: Path) -> None:
        write_json(folder / "job.json", self)


def read_spec(folder: Path) -> JobSpec:
    """The job that `folder` describes."""
    data = read_json(folder / "job.json")
    spec = convert(data, JobSpec)
    return replace(spec, trainer=build(VerlSettings, data["trainer"], "trainer"))
