"""GRPO with LoRA in this process, on CPU or one GPU. After every iteration the state is saved, so
that a job that was killed at any moment gives the same result when resumed (bit by bit with the
same number of threads)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from trace_bench.core.protocols import Lab, RunContext, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.text import file_name
from trace_bench.core.types import AgentSpec, Meta, Trajectory
from trace_bench.trainers import course, loop
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.grpo import Advantages
from trace_bench.trainers.job import ByRecipe, check_job, credit, identity_of, start_of
from trace_bench.trainers.memory import GPU, shape_of

if TYPE_CHECKING:
    import torch

    from trace_bench.trainers.model import Learner, State
    from trace_bench.trainers.update import Steps


PATIENCE = 5  # iterations with nothing left to learn before stopping early


@dataclass(frozen=True)
class TrainerSettings(Recipe):
    """`trainer.*` of `trainer=local`."""

    memory: Annotated[float, Meta(ge=0.01)] = 4.0
    """GB that a forward pass may keep for the backward pass: batches are divided to fit, and a
    sequence that does not fit alone has its layers computed again."""


class LocalTrainer(ByRecipe):
    """`trainer=local`: GRPO with LoRA in this process."""

    settings: TrainerSettings
    weights_here = True

    def __init__(self, settings: TrainerSettings, run: RunContext) -> None:
        self.settings, self.context = settings, run
        self._learners: dict[str, Learner] = {}  # the last one, for later jobs

    def train(self, job: TrainingJob, lab: Lab) -> AgentSpec:
        """Returns the job's agent with the adapter `<job.name>@<version>`, which takes the place of
        one that it has; the agent itself if no iteration took an optimizer step. Raises UserError
        as the plan does, for an agent that routes between adapters, a model without a target
        module, and a folder with another job of that name."""
        return LocalTraining(job, lab, self).run()

    def plan_training(self, rollouts: int, name: str, points: Sequence[int]) -> str | None:
        course.make_schedule(rollouts, self.settings, name)
        return course.curve_caveat(self.settings, rollouts, points)

    def machines(self, billions: float | None) -> tuple[list[str], list[str]]:
        """All weights on one device, in float32 at most."""
        where = f"trainer=local on {self.context.device}{self.settings.by}"
        shape = shape_of(self.context.model)
        unreached = shape.unreached(self.settings.target_modules) if shape else ""
        missing = [unreached] if unreached else []
        if billions is None:
            return [f"{where}: the weights in this process"], missing
        size = (2 if self.context.dtype == "bfloat16" else 4) * billions
        if size > GPU:
            missing.append(
                f"trainer=local holds all weights on one device, and {size:.3g} GB fit no GPU of "
                f"{GPU} GB: a trainer over several GPUs is needed for this model"
            )
        return [f"{where}: {size:.3g} GB of weights in this process"], missing

    def preflight(self, new: bool) -> None:
        """Raises UserError for layers that the model lacks."""
        from trace_bench.policies.loading import without_weights
        from trace_bench.trainers.adapters import targeted

        if new and self.context.model:
            targeted(without_weights(self.context.model), self.settings.target_modules)

    def learner(self, model: str) -> Learner:
        """The base model with LoRA layers, which hold the weights of the last training."""
        import torch

        from trace_bench.trainers.model import Learner

        s, run = self.settings, self.context
        if run.threads is not None:
            torch.set_num_threads(run.threads)  # another number changes rounding
        if model not in self._learners:
            learner = Learner(
                model, s.target_modules, s.rank, s.alpha, run.device, run.dtype, s.memory * 1e9
            )
            self._learners = {model: learner}
        return self._learners[model]


class LocalTraining(loop.Training[course.Rollouts]):
    """One job. `learner`, `optimizer`: while there is something to learn."""

    state: State
    learner: Learner
    optimizer: torch.optim.Optimizer

    def __init__(self, job: TrainingJob, lab: Lab, trainer: LocalTrainer) -> None:
        self.job, self.lab, self.trainer = job, lab, trainer
        self.settings = trainer.settings
        check_job(job)
        self.versions = loop.Versions(job.name, job.agent)
        self.course = course.Course(job.tasks, self.settings, job.seed, job.rollouts, job.name)
        self.folder = lab.folder / "adapters" / file_name(job.name)

    def play(self, iteration: int) -> course.Rollouts:
        call, adapter = self.versions.call(iteration), self.versions.version(iteration)
        return course.play_iteration(
            self.course, call, self.agent(iteration), adapter, self.job, self.lab
        )

    def learn(self, iteration: int, played: course.Rollouts) -> loop.Record:
        from trace_bench.trainers.adapters import largest_update
        from trace_bench.trainers.tree import stretches
        from trace_bench.trainers.update import update

        where = self.where(iteration)
        advantages = credit(played.trajectories, played.rewards, self.job, self.settings)
        for options in self.optimizer.param_groups:
            options["lr"] = self.course.rate()
        steps = update(
            self.learner,
            self.optimizer,
            [stretches(t) for t in played.trajectories],
            advantages,
            self.settings,
            stable_seed(self.job.seed, "update", iteration),
            progress=partial(self.lab.step, where),
        )
        largest = largest_update(self.learner.layers)
        loop.check_finite(f"{where}, step {steps.steps}", steps.grad_norm, largest)
        record = self.record(iteration, played.trajectories, advantages, steps)
        return {**record, "update_norm": largest[0]}

    def goes_on(self, records: Sequence[loop.Record]) -> bool:
        return not self.state.finished

    def save(self, records: Sequence[loop.Record]) -> None:
        """Saves the new version, then the state that names it, then removes older versions: so the
        state's version exists even after an interruption."""
        from trace_bench.trainers.adapters import write_adapter

        latest = [record["one_share"] == 1.0 for record in records[-PATIENCE:]]
        nothing_left = len(latest) == PATIENCE and all(latest)
        self.state.finished = nothing_left or not self.course.iterations_left()
        version = self.folder / f"{len(records):04d}"
        write_adapter(version, self.learner.layers, vars(self.settings), self.job.agent.model)
        self.state.save(self.folder, self.learner, self.optimizer)
        loop.remove_versions(self.folder, len(records))

    def publish(self, iteration: int, record: loop.Record) -> None:
        loop.publish(self.job, self.lab, record, self.agent(iteration + 1))

    def load(self) -> list[loop.Record]:
        from trace_bench.trainers.model import State

        self.state = State.load(self.folder, identity_of(self.job, self.settings), self.lab.log)
        loop.remove_versions(self.folder, len(self.state.records))  # also those that a kill left
        return self.state.records

    def repeat(self, iteration: int) -> None:
        self.play(iteration)

    @contextmanager
    def learning(self) -> Iterator[None]:
        from trace_bench.trainers.model import restore

        self.learner = self.trainer.learner(self.job.agent.model)
        start = start_of(self.job.agent)
        self.optimizer = restore(self.state, self.learner, self.settings, self.job.seed, start)
        yield

    def result(self, records: Sequence[loop.Record]) -> AgentSpec:
        if self.course.iterations_left():
            self.lab.log(f"{self.job.name}: nothing is left to learn, training stops early")
        return loop.conclude(self.job, self.lab, records, self.agent(len(records)))

    def where(self, iteration: int) -> str:
        return f"{self.job.name}, iteration {iteration}"

    def agent(self, iteration: int) -> AgentSpec:
        return self.versions.acting(iteration, self.folder)

    def record(
        self,
        iteration: int,
        trajectories: Sequence[Trajectory],
        advantages: Advantages,
        steps: Steps,
    ) -> loop.Record:
        """One line of metrics; those of the update are None if nothing was trained on."""
        n = max(steps.steps, 1)
        trained: Mapping[str, float | None] = {
            "loss": steps.loss / n,
            "clip_share": steps.clipped / max(steps.weight, 1),
            "kl": steps.kl / max(steps.weight, 1),
            "grad_norm": steps.grad_norm / n,
            "tokens_per_s": round(steps.tokens / max(steps.seconds, 1e-9), 1),
        }
        sampler = loop.of_sampler(
            self.where(iteration), steps.mismatch, self.settings.mismatch, self.lab
        )
        return {
            "phase": "training",
            "adapter": self.versions.version(iteration + 1),
            "iteration": iteration,
            "spent": self.course.spent,
            **loop.of_rollouts(trajectories, self.job.reward, advantages),
            "learning_rate": self.course.rate(),
            "steps": steps.steps,
            "tokens": steps.tokens,
            **(trained if steps.steps else dict.fromkeys(trained)),
            **sampler,
        }
