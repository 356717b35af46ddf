"""`trainer=verl` in the run's process: writes a job's folder, starts verl, and records the episodes
of its workers in the ledger as they arrive, iteration by iteration.

Differences from trainer=local: rollouts that full iterations leave at the end of the budget stay
unspent, groups in which all rewards are equal count in a mean over trajectories, with an advantage
of zero, and there is no early stopping. Of an iteration that lost too many of its episodes the next
start runs the lost ones again (process.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab, OnEpisode, PlayElsewhere, RunContext, TrainingJob
from trace_bench.core.store import read_if_there, repair, write_json
from trace_bench.core.text import file_name
from trace_bench.core.types import AgentSpec
from trace_bench.trainers import loop
from trace_bench.trainers.course import Rollouts, curve_caveat, play_iteration
from trace_bench.trainers.grpo import Advantages, Mismatch
from trace_bench.trainers.job import ByRecipe, check_job, credit
from trace_bench.trainers.verl.machines import hours, machines
from trace_bench.trainers.verl.preflight import preflight, refusals
from trace_bench.trainers.verl.process import Collector, Process
from trace_bench.trainers.verl.settings import VerlSettings, full_iterations
from trace_bench.trainers.verl.spec import MISMATCH, STEPS, Arrivals, JobSpec, StepFiles, spec_of


class VerlTrainer(ByRecipe):
    """`trainer=verl`: the same GRPO with LoRA by verl over Ray: several processes, GPUs and
    machines. Needs `pip install '.[verl]'`, and on GPUs 'verl[vllm]' too. One machine's CPU:
    python -m trace_bench method=grpo env=toolsandbox trainer=verl trainer.device=cpu trainer.gpus=2
    """

    settings: VerlSettings

    def __init__(self, settings: VerlSettings, run: RunContext) -> None:
        self.settings, self.context = settings, run

    def plan_training(self, rollouts: int, name: str, points: Sequence[int]) -> str | None:
        full_iterations(rollouts, self.settings, name)
        return curve_caveat(self.settings, rollouts, points, self.settings.save_every)

    def preflight(self, new: bool) -> None:
        """Raises UserError for settings that cannot work; for a `new` run verl checks them too."""
        preflight(self.sample_job(), whole=new)

    def sample_job(self) -> JobSpec:
        """A job like those of the run, for checking settings."""
        job = TrainingJob("check", AgentSpec(self.context.model), (), 0, 0)
        shape = (1, self.settings.groups)
        return spec_of(job, self.settings, self.context, shape, self.context.seed)

    def machines(self, billions: float | None) -> tuple[list[str], list[str]]:
        """Memory of training, of its rollouts and of the agent's server, by `trainers.memory`."""
        lines, missing = machines(self.settings, self.context, billions)
        return lines, refusals(self.sample_job()) + missing

    def outlook(self, *work: Any) -> list[str]:
        """The hours too."""
        return super().outlook(*work) + hours(self.settings, self.context, *work)

    def train(self, job: TrainingJob, lab: Lab) -> AgentSpec:
        """As trainer=local. UserError for settings that verl refuses, VerlFailed if it fails."""
        check_job(job)
        return VerlTraining(job, lab, self.spec(job, lab), self.context).run()

    def spec(self, job: TrainingJob, lab: Lab) -> JobSpec:
        shape = full_iterations(job.rollouts, self.settings, job.name)
        return spec_of(job, self.settings, self.context, shape, lab.seed, lab.sources())


class VerlTraining(loop.Training[Rollouts]):
    """One job. `adapters`: the folder of the adapter's versions; `folder`: verl's, inside it."""

    process: Process

    def __init__(self, job: TrainingJob, lab: Lab, spec: JobSpec, context: RunContext) -> None:
        self.job, self.lab, self.spec, self.settings = job, lab, spec, spec.trainer
        self.context = context
        self.adapters = (lab.folder / "adapters" / file_name(job.name)).resolve()
        self.folder, self.finished = self.adapters / "verl", self.adapters / "finished.json"
        self.course = spec.course(job.tasks)
        self.arrivals, self.steps = Arrivals(self.folder / "episodes"), StepFiles(self.folder)

    def play(self, iteration: int) -> Rollouts:
        """The iteration's episodes, run by verl's workers and recorded in the ledger."""

        def ended(call: str, count: int) -> None:
            self.collector(call, count).check_kept(range(count))

        rollouts = self.rollouts(iteration, self.collector, ended)
        self.progress(iteration)
        return rollouts

    def learn(self, iteration: int, played: Rollouts) -> loop.Record:
        verl = self.wait(partial(reported, iteration + 1, self.process))
        self.fetch(iteration + 1)
        return self.record(iteration, played, verl)

    def goes_on(self, records: Sequence[loop.Record]) -> bool:
        return self.course.iterations_left()

    def save(self, records: Sequence[loop.Record]) -> None:
        """What verl goes on from it saves itself; a finished job keeps its metrics and adapter."""
        self.progress(len(records))
        if self.course.iterations_left():
            return
        self.wait(lambda: self.steps.saved() >= len(records) or None)
        self.process.stop()
        write_json(self.finished, {"records": records})
        for name in ("checkpoints", "episodes", "start"):  # episodes are in the run's trajectories
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def publish(self, iteration: int, record: loop.Record) -> None:
        kept = self.agent(iteration + 1) if self.saved(iteration + 1) else None
        loop.publish(self.job, self.lab, record, kept)

    def load(self) -> list[loop.Record]:
        """The metrics of a finished job. UserError if unreadable, or of another job."""
        from trace_bench.trainers.verl.job import claim

        claim(self.adapters, self.job, self.spec)
        if not isinstance(records := read_if_there(self.finished).get("records", []), list):
            raise UserError(f"{self.finished} holds no records. {repair(self.finished)}")
        return records

    def repeat(self, iteration: int) -> None:
        self.rollouts(iteration, lambda call, count: _Refuses())

    @contextmanager
    def learning(self) -> Iterator[None]:
        """verl's processes, which go on from its last checkpoint."""
        from trace_bench.trainers.verl.job import prepare

        prepare(self.folder, self.job, self.spec)
        try:
            self.process = Process(self.folder, self.spec, self.lab.log, self.steps.starts())
            self.steps.repair()
            self.process.resumed = self.steps.saved()
            try:
                yield
            finally:
                self.process.stop()
        finally:
            self.context.clean_up()

    def result(self, records: Sequence[loop.Record]) -> AgentSpec:
        return loop.conclude(self.job, self.lab, records, self.agent(len(records)))

    def agent(self, iteration: int) -> AgentSpec:
        return self.spec.acting(iteration, self.adapters)

    def collector(self, call: str, count: int) -> Collector:
        return Collector(self.process, self.arrivals, call, count)

    def rollouts(self, iteration: int, *by: Any) -> Rollouts:
        call, adapter = self.spec.call(iteration), self.spec.version(iteration)
        agent = self.agent(iteration)
        return play_iteration(self.course, call, agent, adapter, self.job, self.lab, *by)

    def progress(self, iterations: int) -> None:
        self.lab.step(f"{self.job.name}, verl's steps", iterations, self.spec.iterations)

    def wait(self, ready: Callable[[], Any]) -> Any:
        """Polls `ready` until it returns something other than None; returns that."""
        self.process.progress()
        while (value := ready()) is None:
            self.process.pause()
        return value

    def fetch(self, version: int) -> None:
        """Exports the adapter after an iteration, if verl saved a checkpoint."""
        from trace_bench.trainers.verl.job import export

        target = self.adapters / f"{version:04d}"
        taken = [int(old.name) for old in self.adapters.glob("[0-9]*")]
        if not self.saved(version) or any(n >= version for n in taken):
            return
        self.wait(lambda: self.steps.saved() >= version or None)
        checkpoint = self.steps.checkpoint(version)
        export(checkpoint, target, vars(self.settings), self.spec.agent.model)
        loop.remove_versions(self.adapters, version)
        self.steps.keep_from(version)  # verl needs only the last one

    def saved(self, version: int) -> bool:
        """Whether verl saves a checkpoint after so many iterations, which are those so far."""
        return not self.course.iterations_left() or version % self.settings.save_every == 0

    def record(self, iteration: int, played: Rollouts, verl: Mapping[str, Any]) -> loop.Record:
        """One line of metrics, with the same names as trainer=local."""
        advantages = credit(played.trajectories, played.rewards, self.job, self.settings)
        where = f"{self.job.name}, iteration {iteration}"
        loop.check_finite(where, verl.get(METRICS["grad_norm"]))
        return {
            "phase": "training",
            "adapter": self.spec.version(iteration + 1),
            "iteration": iteration,
            "spent": self.course.spent,
            **loop.of_rollouts(played.trajectories, self.job.reward, advantages),
            "learning_rate": self.course.rate(),
            "tokens": sum(t.tokens for t in played.trajectories),
            "steps": steps_of(verl, advantages),
            **{ours: verl.get(theirs) for ours, theirs in METRICS.items()},
            **loop.of_sampler(where, mismatch_of(verl), self.settings.mismatch, self.lab),
        }


def reported(step: int, process: Process) -> dict[str, Any] | None:
    """verl's metrics of a step; None until they are written. They never are if verl was killed
    between saving a checkpoint and writing them: then the result is empty."""
    metrics = process.steps.of(step)
    return {} if metrics is None and step <= process.resumed else metrics


def steps_of(verl: Mapping[str, Any], advantages: Advantages) -> int | None:
    """How many optimizer steps had a gradient. None: verl's metrics are lost, and some may have."""
    if (counted := verl.get(f"actor/{STEPS}")) is not None:
        return round(counted)
    return None if bool(advantages.trained.any()) else 0


def mismatch_of(verl: Mapping[str, Any]) -> Mismatch | None:
    """What `steps.StepTrainer` measured; None if it compared nothing."""
    values = [verl.get(name) for name in MISMATCH]
    return None if None in values else Mismatch(*map(float, values))  # type: ignore[arg-type]


METRICS = {
    "loss": "actor/pg_loss",
    "clip_share": "actor/pg_clipfrac",
    "kl": "actor/ppo_kl",
    "grad_norm": "actor/grad_norm",
    "seconds": "timing_s/step",
    "seconds_rollouts": "timing_s/gen",
    "seconds_update": "timing_s/update_actor",
    "tokens_per_s": "perf/throughput",
}
"""Our names for verl's metrics."""


class _Refuses(PlayElsewhere):
    def __call__(self, which: Sequence[int], ended: OnEpisode) -> None:
        self.take_back(which)

    def take_back(self, missing: Sequence[int]) -> None:
        raise UserError(
            f"{len(missing)} episodes of a finished training are missing from the run folder. "
            "Restore ledger.jsonl and trajectories.jsonl, or change the setting `run_dir`."
        )
