"""A training job for verl's processes: its description, written before they start, and a reader of
what they write. It is one folder on storage that all machines share:

    job.json      this file's `JobSpec`
    tasks.parquet one row per task
    start/        the adapter with which training begins
    episodes/     the workers' episodes, one file per process
    checkpoints/  verl's checkpoints
    metrics-*     verl's metrics, one file per start
    verl.log      the output of the processes
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trace_bench.core import store
from trace_bench.core.checked import build
from trace_bench.core.decode import convert
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, Source, TrainingJob
from trace_bench.core.types import Count, Stored, Task, Trajectory, to_json
from trace_bench.play.suites import generated_key
from trace_bench.trainers.course import Course
from trace_bench.trainers.loop import Versions
from trace_bench.trainers.verl.settings import VerlSettings

JOB_VARIABLE = "TRACE_BENCH_VERL_JOB"  # the environment variable with the path of the folder

CPU_ROLLOUT = "trace_bench"  # the rollout server on a CPU, by its name in verl's settings

NOTHING = -1  # the adapter version of a placeholder for an episode that cannot be trained on

LOSS = "trace_bench"  # the loss of tokens, by its name in verl's settings (`engine.policy_loss`)

STEPS = "trace_bench_steps_max"
"""The metric with the number of an iteration's optimizer steps that had a gradient. verl reduces a
metric of this name by its largest value: it is counted up from step to step."""

RATE = "trace_bench_rate"  # the extra field of a batch with the learning rate of its iteration

MISMATCH = tuple(f"trace_bench/logprob_difference_{name}" for name in ("mean", "max", "kl"))
"""The metrics with the fields of `grpo.Mismatch`."""

CALL, FIRST = "call", "first"
"""The extra fields of a prompt: the call of its group's episodes, and the index of the first."""

LATEST = "latest_checkpointed_iteration.txt"  # of verl's folder of checkpoints


@dataclass(frozen=True)
class JobSpec(Versions):
    """One training job. `settings`: the run's, as plain data. `suites`: the function that builds
    the run's suites from them in another process ("module:function"). `seed`: the run's seed, from
    which episodes' seeds are derived; `job_seed`: the job's, which puts its tasks in order.
    At most `iterations` have `groups` groups each: fewer, and larger ones, if constant groups are
    sampled again."""

    run: str
    seed: int
    reward: str
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

    def course(self, tasks: Sequence[Task]) -> Course:
        """Which tasks come next. The run's process and verl's trainer follow it, each by itself,
        from the rewards of the same episodes."""
        recipe = replace(self.trainer, groups=self.groups)
        rollouts = self.iterations * self.groups * self.trainer.group_size
        return Course(tasks, recipe, self.job_seed, rollouts, self.name)

    def when(self, call: str) -> tuple[int, int]:
        """(iteration, how often its constant groups were sampled again before) of training's
        rollouts; (-1, 0) of others."""
        match = re.fullmatch(rf"{re.escape(self.call(0)[:-4])}(\d+)(?:/again(\d+))?", call)
        return (int(match[1]), int(match[2] or 0)) if match else (-1, 0)

    def episode_seed(self, call: str, index: int) -> int:
        """The seed of the episode's random stream, the same as in `Lab.rollouts`."""
        return store.stable_seed(self.seed, call, index)

    def write(self, folder: Path) -> None:
        store.write_json(folder / "job.json", self)

    @classmethod
    def read(cls, folder: Path) -> JobSpec:
        data = store.read_json(folder / "job.json")
        spec = convert(data, JobSpec)
        return replace(spec, trainer=build(VerlSettings, data["trainer"], "trainer"))


def spec_of(
    job: TrainingJob,
    settings: VerlSettings,
    run: RunContext,
    shape: tuple[int, int],
    seed: int,
    sources: Sequence[Source] = (),
) -> JobSpec:
    """The job description for verl's processes. `shape`: (iterations, groups of each); `seed`: the
    run's; `sources`: of the generated suites in use."""
    used = {task.env for task in job.tasks}
    return JobSpec(
        name=job.name,
        run=run.fingerprint,
        seed=seed,
        reward=job.reward,
        agent=job.agent,
        trainer=settings,
        settings=run.settings,
        suites=run.elsewhere,
        iterations=shape[0],
        groups=shape[1],
        context=context(run),
        max_turns=run.max_turns,
        max_tokens=run.max_tokens,
        thinking=run.thinking,
        thoughts=run.thoughts,
        sources=tuple(to_json(s) for s in sources if generated_key(s.name) in used),
        assignment=job.assignment,
        job_seed=job.seed,
    )


def context(run: RunContext) -> int:
    """Tokens of an episode: with servers, `policy.context`, which must be set; else the limit of
    the local policy. Raises UserError."""
    if run.at_servers:
        if run.context is None:
            raise UserError(
                "trainer=verl needs a limit on an episode's tokens when servers generate the "
                "turns. Set policy.context to the servers' limit (--max-model-len)."
            )
        return run.context
    from trace_bench.policies.loading import load_config
    from trace_bench.policies.local import context_of

    return context_of(load_config(run.model), run.context)


class Arrivals:
    """Reads episodes from files to which several processes append. If an episode occurs twice (two
    processes, one of them killed), the first one counts. Raises UserError for a foreign line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, tuple[int, int]] = {}  # lines and bytes of each file
        self._there: dict[str, dict[int, Trajectory | None]] = {}  # None: it was taken

    def forget(self) -> None:
        self._read.clear()
        self._there.clear()

    def indices(self, call: str) -> frozenset[int]:
        """The indices of a call's episodes that are in the files."""
        self._look()
        return frozenset(self._there.get(call, ()))

    def take(self, call: str, wanted: set[int]) -> Iterator[tuple[int, Trajectory]]:
        """The wanted episodes that have arrived, by index; each is returned once."""
        self._look()
        there = self._there.get(call, {})
        for index in sorted(wanted & there.keys()):
            if (trajectory := there[index]) is not None:
                there[index] = None
                yield index, trajectory

    def _look(self) -> None:
        for path in sorted(self.folder.glob("*.jsonl")):
            for number, start, line in store.whole_lines(path, *self._read.get(path, (0, 0))):
                stored = store.parse_line(line, path, number, Stored)
                of_call = self._there.setdefault(stored.call, {})
                of_call.setdefault(stored.index, stored.trajectory)
                self._read[path] = number, start + len(line)


@dataclass(frozen=True)
class OfStep:
    """A line of verl's metrics."""

    step: Count
    data: dict[str, Any]


class StepFiles:
    """verl's metrics by step (from 1) over all its starts; the latest start wins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def starts(self) -> int:
        """How often verl was started in this folder, judged by its files."""
        names = [path.stem for path in self.folder.glob("metrics-*.jsonl")]
        return max((int(name.rpartition("-")[2]) + 1 for name in names), default=0)

    def of(self, step: int) -> dict[str, Any] | None:
        """A step's metrics; None until they are written."""
        for path in sorted(self.folder.glob("metrics-*.jsonl"), reverse=True):
            for line in store.read_lines(path, OfStep):
                if line.step == step and "actor/pg_loss" in line.data:
                    return line.data
        return None

    def repair(self) -> None:
        """Repairs the file that names the last checkpoint. verl does not replace it atomically, so
        a kill may leave it empty, and verl would not start; or the checkpoint was removed because
        it was damaged. Then it is set to the last complete checkpoint (the one whose dataloader
        state, written last, exists) or removed."""
        if self._latest.exists() and self.saved() not in (complete := self._complete()):
            self._name_last(complete)

    def back_to(self, most: int) -> None:
        """Makes the last checkpoint after at most so many steps the last one of all."""
        if self.saved() > most:
            self._name_last([step for step in self._complete() if step <= most])
        self._remove(lambda step: step > most)

    def keep_from(self, least: int) -> None:
        """Removes the checkpoints after fewer steps."""
        self._remove(lambda step: step < least)

    def _remove(self, unwanted: Callable[[int], bool]) -> None:
        for place in self._latest.parent.glob("global_step_*"):
            if unwanted(step_of(place)):
                shutil.rmtree(place)

    def _complete(self) -> list[int]:
        """The steps of the complete checkpoints, in no order."""
        return [step_of(path.parent) for path in self._latest.parent.glob("global_step_*/data.pt")]

    def _name_last(self, steps: Sequence[int]) -> None:
        if steps:
            store.write_text(self._latest, str(max(steps)))
        else:
            self._latest.unlink()

    @property
    def _latest(self) -> Path:
        return self.folder / "checkpoints" / LATEST

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint after so many steps."""
        return self._latest.parent / f"global_step_{step}"

    def saved(self) -> int:
        """The step of the last complete checkpoint; 0 if there is none."""
        try:
            return int(self._latest.read_text())
        except (FileNotFoundError, ValueError):  # absent, or being written
            return 0


def step_of(checkpoint: Path) -> int:
    """The number of steps after which verl saved a checkpoint, from the name of its folder."""
    return int(checkpoint.name.rpartition("_")[2])
