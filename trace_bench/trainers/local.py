"""GRPO with LoRA in this process, on CPU or one GPU.

One iteration: groups of rollouts by the current adapter, advantages within each group, a few
optimizer steps, a new version of the adapter. After every iteration what is needed to go on is on
disk, so that a job that was killed at any moment ends as it would have undisturbed (with the same
number of threads, bit by bit). The schedule spans the job's whole share of the budget.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.protocols import Lab, TrainingJob
from trace_bench.core.store import fingerprint, stable_seed
from trace_bench.core.types import AdapterRef, AgentSpec, Purpose, Task, Trajectory
from trace_bench.trainers.record import REWARDS, check_turns, exact, of_rollouts, reward_of
from trace_bench.trainers.schedule import Schedule, plan, task_of_group
from trace_bench.trainers.settings import TrainerSettings
from trace_bench.trainers.tree import sequence_of

if TYPE_CHECKING:
    import torch

    from trace_bench.trainers.grpo import Advantages
    from trace_bench.trainers.model import Learner
    from trace_bench.trainers.resume import State
    from trace_bench.trainers.update import Steps

__all__ = ["LocalTrainer", "TrainerSettings"]

_MISMATCH = 0.01  # mean sampler-trainer difference of log-probabilities that is worth a warning


class LocalTrainer:
    """Implements `protocols.Trainer`. `threads` sets torch's thread count for the process (None:
    as it is); another count changes rounding. The model is loaded once and kept for later jobs."""

    def __init__(
        self, settings: TrainerSettings, *, threads: int | None = None, device: str = "cpu"
    ) -> None:
        self.settings, self.threads, self.device = settings, threads, device
        self._learners: dict[str, Learner] = {}

    def train(self, job: TrainingJob, lab: Lab) -> AgentSpec:
        """The job's agent with one more adapter, under the name `<job.name>@<version>`.

        Raises UserError when the job's rollouts do not pay for one iteration, when the model lacks
        a target module, and when the folder holds a job of the same name with other settings."""
        return _Training(job, lab, self).run()

    def learner(self, model: str) -> Learner:
        """The base model with LoRA layers; their weights are whatever was trained last."""
        import torch

        from trace_bench.trainers.model import Learner

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if model not in self._learners:
            s = self.settings
            learner = Learner(model, s.target_modules, s.rank, s.alpha, self.device)
            self._learners = {model: learner}
        return self._learners[model]


class _Training:
    """One job."""

    def __init__(self, job: TrainingJob, lab: Lab, trainer: LocalTrainer) -> None:
        self.job, self.lab, self.trainer = job, lab, trainer
        self.settings = trainer.settings
        if job.reward not in REWARDS:
            raise unknown("reward", job.reward, REWARDS, "method.reward")
        if not job.tasks:
            raise UserError(f"training {job.name!r} has no tasks; check the setting `env`.")
        if any(a.name.partition("@")[0] == job.name for a in job.agent.adapters):
            raise ValueError(f"the agent has an adapter {job.name!r} already; names are used once")
        self.schedule: Schedule = plan(job.rollouts, self.settings, job.name)
        self.folder = lab.folder / "adapters" / job.name
        self.first_group = [s // self.settings.group_size for s in self.schedule.spent]

    def run(self) -> AgentSpec:
        from trace_bench.trainers.resume import State

        state = State.load(self.folder, self.identity())
        for iteration in range(state.iteration):  # what was done before the program was stopped
            self.rollouts(iteration)
            self.publish(state, iteration)
        if not state.finished:
            self.go_on(state)
        if state.iteration < len(self.schedule.groups):
            self.lab.say(f"{self.job.name}: nothing is left to learn, training stops early")
        unspent = self.job.rollouts - self.spent(state.iteration)
        self.lab.metric(phase="trained", adapter=self.version(state.iteration), unspent=unspent)
        self.lab.say(
            f"{self.job.name}: {state.iteration} iterations, {self.spent(state.iteration)} "
            f"rollouts, {unspent} unspent"
        )
        return self.agent(state.iteration)

    def go_on(self, state: State) -> None:
        """All iterations that are still to come."""
        from trace_bench.trainers.resume import restore

        learner = self.trainer.learner(self.job.agent.model)
        optimizer = restore(state, learner, self.settings, self.job.seed)
        for iteration in range(state.iteration, len(self.schedule.groups)):
            trajectories = self.rollouts(iteration)
            record = self.learn(iteration, trajectories, learner, optimizer)
            perfect = record["one_share"] == 1.0
            state.perfect = state.perfect + 1 if perfect else 0
            state.records.append(record)
            state.iteration = iteration + 1
            last = state.iteration == len(self.schedule.groups)
            state.finished = last or state.perfect >= self.settings.patience
            self.save(state, learner, optimizer)
            self.publish(state, iteration)
            if state.finished:
                return

    # -- what an iteration plays ------------------------------------------------------------------

    def tasks(self, iteration: int) -> list[Task]:
        """The iteration's tasks, each `group_size` times in a row."""
        first = self.first_group[iteration]
        groups = range(first, first + self.schedule.groups[iteration])
        chosen = [task_of_group(g, self.job.tasks, self.job.seed) for g in groups]
        return [task for task in chosen for _ in range(self.settings.group_size)]

    def rollouts(self, iteration: int) -> list[Trajectory]:
        tasks = self.tasks(iteration)
        adapter = self.version(iteration) if iteration else None  # version 0 is the base model
        played = self.lab.rollouts(
            f"train/{self.job.name}/iter{iteration:04d}",
            self.agent(iteration),
            tasks,
            purpose=Purpose.TRAINING,
            temperature=1.0,
            route=[adapter] * len(tasks),
        )
        for trajectory in played:
            check_turns(trajectory, adapter)
        if not any(map(exact, played)):
            raise UserError(
                "the policy gives no token ids with log-probabilities, so nothing can be trained "
                "on its rollouts. Change the setting `policy`."
            )
        return played

    def spent(self, iteration: int) -> int:
        """Rollouts spent before an iteration."""
        return sum(self.schedule.groups[:iteration]) * self.settings.group_size

    # -- the adapter's versions -------------------------------------------------------------------

    def version(self, iteration: int) -> str:
        return f"{self.job.name}@{iteration:04d}"

    def agent(self, iteration: int) -> AgentSpec:
        """The agent that plays an iteration, and after the last one the result."""
        if iteration == 0:
            return self.job.agent
        version = self.version(iteration)
        adapter = AdapterRef(version, str(self.folder / f"{iteration:04d}"))
        base = self.job.agent
        return replace(
            base, version=f"{base.version}+{version}", adapters=(*base.adapters, adapter)
        )

    def save(self, state: State, learner: Learner, optimizer: torch.optim.Optimizer) -> None:
        """The new version first, then the state that names it, then older versions go: whatever is
        interrupted, the state's version is there."""
        from trace_bench.trainers.adapters import write_adapter

        s = self.settings
        lora = {"rank": s.rank, "alpha": s.alpha, "target_modules": s.target_modules}
        version = self.folder / f"{state.iteration:04d}"
        write_adapter(version, learner.layers, lora, self.job.agent.model)
        state.save(self.folder, learner, optimizer)
        for old in sorted(self.folder.glob("[0-9]*")):
            if int(old.name) < state.iteration:
                shutil.rmtree(old)

    def publish(self, state: State, iteration: int) -> None:
        self.lab.metric(**state.records[iteration])
        agent = self.agent(iteration + 1)
        self.lab.checkpoint(self.job.whole(agent) if self.job.whole else agent)

    def identity(self) -> str:
        """What a stored state must agree with to be continued."""
        return fingerprint(
            {
                "name": self.job.name,
                "model": Path(self.job.agent.model).name,
                "agent": self.job.agent.version,
                "tasks": [t.id for t in self.job.tasks],
                "rollouts": self.job.rollouts,
                "seed": self.job.seed,
                "reward": self.job.reward,
                "settings": dataclasses.asdict(self.settings),
            }
        )

    # -- learning ---------------------------------------------------------------------------------

    def learn(
        self,
        iteration: int,
        trajectories: Sequence[Trajectory],
        learner: Learner,
        optimizer: torch.optim.Optimizer,
    ) -> dict[str, Any]:
        """Updates the adapter from one iteration's rollouts; returns what is worth logging."""
        import torch

        from trace_bench.trainers.grpo import group_advantages
        from trace_bench.trainers.update import update

        rewards = torch.tensor(
            [reward_of(t, self.job.reward) for t in trajectories], dtype=torch.float64
        )
        group = torch.arange(len(trajectories)) // self.settings.group_size
        found = group_advantages(rewards, group, normalize_std=self.settings.normalize_std)
        rate = self.schedule.rate(iteration, self.settings)
        for options in optimizer.param_groups:
            options["lr"] = rate
        sequences = [sequence_of(t) for t in trajectories]
        seed = stable_seed(self.job.seed, "update", iteration)
        steps = update(learner, optimizer, sequences, found, self.settings, seed)
        where = f"{self.job.name}, iteration {iteration}"
        if not math.isfinite(steps.grad_norm):
            raise UserError(
                f"{where}: loss or gradient is not finite, training came apart. Lower the setting "
                "`trainer.learning_rate`."
            )
        if steps.difference_mean is not None and steps.difference_mean > _MISMATCH:
            self.lab.say(
                f"{where}: sampler and trainer differ by {steps.difference_mean:.3f} in "
                "log-probability on average"
            )
        return self.record(iteration, trajectories, found, steps, rate)

    def record(
        self,
        iteration: int,
        trajectories: Sequence[Trajectory],
        found: Advantages,
        steps: Steps,
        rate: float,
    ) -> dict[str, Any]:
        """One line of metrics; figures of the update are None when nothing was trained on."""
        n = max(steps.steps, 1)
        trained: Mapping[str, float | None] = {
            "loss": steps.loss / n,
            "clip_share": steps.clipped / max(steps.weight, 1),
            "kl": steps.kl / max(steps.weight, 1),
            "grad_norm": steps.grad_norm / n,
            "logprob_difference_mean": steps.difference_mean,
            "logprob_difference_max": steps.difference_max,
            "tokens_per_s": round(steps.tokens / max(steps.seconds, 1e-9), 1),
        }
        return {
            "phase": "training",
            "adapter": self.version(iteration + 1),
            "iteration": iteration,
            "spent": self.spent(iteration + 1),
            **of_rollouts(trajectories, self.job.reward, found),
            "learning_rate": rate,
            "steps": steps.steps,
            "tokens": steps.tokens,
            **(trained if steps.steps else dict.fromkeys(trained)),
        }
