"""What verl's processes need to know of a training job: one folder, written before they start.

It stands on storage that all machines share:

    job.json      this file's `JobSpec`
    tasks.parquet one row a group, in the order in which they are played
    start/        the adapter that training begins with
    episodes/     what the workers played, one file a process
    checkpoints/  verl's
    verl.log      all that the processes printed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_bench.core.store import read_json, stable_seed, write_json
from trace_bench.core.types import AdapterRef, AgentSpec, Task, agent_from_json

JOB_VARIABLE = "TRACE_BENCH_VERL_JOB"
"""The environment variable that tells verl's processes where the folder is."""

CPU_ROLLOUT = "trace_bench"
"""The rollout server on a CPU, by its name in verl's settings."""

NOTHING = -1
"""The version of an episode that cannot be trained on, where verl wants one."""

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class JobSpec:
    """`trainer`: the settings of trainer=verl; `settings`: the run's, as plain data. `suites` names
    the function that makes the run's suites from them in another process ("module:function"; see
    `Player`). `seed`: the run's, from which episodes' seeds follow.
    `iterations` of `groups` groups of `group_size` rollouts each, `decay` over them. Iteration i is
    played by adapter version i; version 0 is the base model."""

    name: str
    run: str
    seed: int
    reward: str
    model: str
    agent: Mapping[str, Any]
    trainer: Mapping[str, Any]
    settings: Mapping[str, Any]
    suites: str
    iterations: int
    groups: int
    group_size: int
    decay: str
    context: int
    deadline: float
    max_turns: int
    max_tokens: int
    sources: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    def call(self, iteration: int) -> str:
        """The name of an iteration's rollouts in the ledger, as with trainer=local."""
        return f"train/{self.name}/iter{iteration:04d}"

    def place(self, group: int, member: int) -> tuple[str, int]:
        """(call, index) of an episode."""
        iteration, within = divmod(group, self.groups)
        return self.call(iteration), within * self.group_size + member

    def episode_seed(self, call: str, index: int) -> int:
        """The episode's own random stream, the same as `Lab.rollouts` gives it."""
        return stable_seed(self.seed, call, index)

    def version(self, iteration: int) -> str | None:
        """The adapter that plays an iteration; None is the base model."""
        return f"{self.name}@{iteration:04d}" if iteration else None

    def rate(self, iteration: int) -> float:
        """The share of the learning rate with which an iteration is trained."""
        if self.decay == "constant":
            return 1.0
        return max(0.0, 1.0 - iteration / self.iterations)

    def acting(self, iteration: int, folder: Path) -> AgentSpec:
        """The agent that plays an iteration, and after the last one the result. `folder` holds the
        versions of the adapter."""
        base = agent_from_json(self.agent)
        version = self.version(iteration)
        if version is None:
            return base
        adapter = AdapterRef(version, str(folder / f"{iteration:04d}"))
        return AgentSpec(
            model=base.model,
            version=f"{base.version}+{version}",
            prompt=base.prompt,
            adapters=(*base.adapters, adapter),
            router=base.router,
        )

    def write(self, folder: Path) -> None:
        write_json(folder / "job.json", self)


def read_spec(folder: Path) -> JobSpec:
    """The job that `folder` describes."""
    return JobSpec(**read_json(folder / "job.json"))


def row(index: int, split: str, task: Task, text: str) -> dict[str, Any]:
    """One row of the table that verl reads; the task travels as JSON. verl wants a prompt and a
    ground truth in every row and never uses ours."""
    return {
        "data_source": split,
        "prompt": [{"role": "user", "content": task.id}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "split": split, "task": text},
        "agent_name": "trace_bench",
    }
