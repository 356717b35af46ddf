"""Evolution strategies on the weights of a LoRA adapter: no gradient, and no weights but the
adapter's, so that it works where only servers are.

Each iteration perturbs the adapter by pairs of opposite noise (antithetic sampling), lets every
member play the same tasks, and moves the adapter by the mean of the noise, weighted by the members'
standardized rewards (Qiu et al. 2025, arXiv 2509.24372, algorithm 1, and the authors'
VsonicV/es-fine-tuning-paper). All members are adapters of one agent, so their episodes run in one
batch. Each episode of each member is a rollout.

The noise is that of B alone, and A stays as drawn: with half the directions to look in, the same
rollouts find more (a bandit after 640, two seeds: 0.99 and 0.66, with noise on both 0.85 and 0.52).
Members act greedily, as in the paper: at temperature 1, luck outweighs by far how they differ, and
the same bandit is at 0.16 after 1280 rollouts.

The noise follows from the seed, and finished calls are answered from disk: a job that was killed is
computed again from its stored rollouts and gives the same adapter to the byte."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import ContinuesAdapters, Lab, TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.text import file_name
from trace_bench.core.types import AdapterRef, AgentSpec, Purpose, Trajectory
from trace_bench.trainers.course import task_of_group
from trace_bench.trainers.record import (
    check_finite,
    check_job,
    check_start,
    check_turns,
    conclude,
    of_rollouts,
    paid,
    publish,
    start_of,
)
from trace_bench.trainers.settings import EsSettings

if TYPE_CHECKING:
    from trace_bench.trainers.adapters import Pair


class EsTrainer(ContinuesAdapters):
    """`trainer=es`: evolution strategies on a LoRA adapter, without a gradient."""

    def __init__(self, settings: EsSettings) -> None:
        self.settings = settings

    def plan_training(self, rollouts: int, name: str, points: Sequence[int]) -> str | None:
        s = self.settings
        if rollouts < s.members:
            raise UserError(
                f"training {name!r} has {rollouts} rollouts and needs at least {s.members} (one "
                "for each member). Raise the setting `budget`, or lower `trainer.pairs`."
            )
        whole = s.members * s.tasks
        late = any(point % whole for point in points if point < rollouts)
        return f"between iterations of {whole} rollouts it is the agent of before" if late else None

    def check_start(self, start: AdapterRef) -> None:
        check_start(start, self.settings)

    def machines(self, billions: float | None) -> tuple[list[str], list[str]]:
        return ["trainer=es: the adapter's weights in this process, no gradient"], []

    def train(self, job: TrainingJob, lab: Lab) -> AgentSpec:
        """As trainer=local; the agent itself if all rewards were equal."""
        check_job(job)
        self.plan_training(job.rollouts, job.name, ())
        return _Evolution(job, lab, self.settings).run()


class _Evolution:
    """One job. `mean`: the adapter's weights, by layer."""

    def __init__(self, job: TrainingJob, lab: Lab, settings: EsSettings) -> None:
        from trace_bench.trainers.adapters import begin_with, fresh

        self.job, self.lab, self.settings = job, lab, settings
        self.folder = lab.folder / "adapters" / file_name(job.name)
        s = settings
        self.mean = fresh(job.agent.model, s.target_modules, s.rank, job.seed)
        if start := start_of(job.agent):
            begin_with(self.mean, start, s)
        self.spent = self.groups = 0

    def run(self) -> AgentSpec:
        records: list[dict[str, Any]] = []
        agent, members = self.job.agent, self.settings.members
        while count := min(self.settings.tasks, (self.job.rollouts - self.spent) // members):
            iteration = len(records)
            found = self.iterate(iteration, count)
            agent = self.agent([self.write(f"{iteration + 1:04d}", self.mean)])
            records.append({**found, "adapter": agent.adapters[0].name})
            publish(self.job, self.lab, records[-1], agent)
        return conclude(self.job, self.lab, records, agent)

    def iterate(self, iteration: int, count: int) -> dict[str, Any]:
        """Plays `count` tasks with every member and moves the mean; returns metrics."""
        import torch

        from trace_bench.trainers.grpo import group_advantages, standardized

        job, s = self.job, self.settings
        played = self.play(iteration, count)
        rewards = torch.tensor([_reward(t, job.reward) for t in played], dtype=torch.float64)
        labels = torch.arange(count).repeat(s.members)
        found = group_advantages(rewards, labels, lambda r: standardized(r, normalize_std=False))
        steps = int(bool(found.trained.any()))
        if steps:
            fitness = standardized(found.values.double().view(s.members, count).mean(1))
            along = (fitness[0::2] - fitness[1::2]) * (s.step / s.members)
            self.mean = self.moved(iteration, dict(enumerate(along.tolist())))
            norm = max(float(pair.b.norm()) for pair in self.mean.values())
            check_finite(f"{job.name}, iteration {iteration}", norm, setting="trainer.step")
        return {
            "phase": "training",
            "iteration": iteration,
            "spent": self.spent,
            **of_rollouts(played, job.reward, found),
            "learning_rate": s.step,
            "steps": steps,
            "tokens": 0,
        }

    def play(self, iteration: int, count: int) -> list[Trajectory]:
        """The episodes of `count` tasks, member by member."""
        job, sigma = self.job, self.settings.sigma
        signed = [(pair, sign * sigma) for pair in range(self.settings.pairs) for sign in (1, -1)]
        members = [
            self.write(f"{iteration:04d}-{n:03d}", self.moved(iteration, {pair: factor}))
            for n, (pair, factor) in enumerate(signed)
        ]
        groups = range(self.groups, self.groups + count)
        tasks = [task_of_group(group, job.tasks, job.seed) for group in groups]
        route = [member.name for member in members for _ in tasks]
        played = self.lab.rollouts(
            f"train/{job.name}/iter{iteration:04d}",
            self.agent(members),
            tasks * len(members),
            purpose=Purpose.TRAINING,
            temperature=self.settings.temperature,
            route=route,
        )
        for trajectory, adapter in zip(played, route, strict=True):
            check_turns(trajectory, adapter)
        self.spent, self.groups = self.spent + len(played), self.groups + count
        for old in self.folder.glob("[0-9]*"):
            shutil.rmtree(old)
        return played

    def moved(self, iteration: int, along: Mapping[int, float]) -> dict[str, Pair]:
        """The mean plus these multiples of the pairs' noise."""
        import torch

        from trace_bench.trainers.adapters import Pair

        found = {name: pair.b.clone() for name, pair in self.mean.items()}
        for pair, factor in along.items():
            seed = stable_seed(self.job.seed, "noise", iteration, pair)
            noise = torch.Generator().manual_seed(seed)
            for b in found.values():
                b += factor * torch.randn(b.shape, generator=noise)
        return {name: Pair(self.mean[name].a, b) for name, b in found.items()}

    def write(self, version: str, weights: Mapping[str, Pair]) -> AdapterRef:
        from trace_bench.trainers.adapters import write_adapter

        write_adapter(self.folder / version, weights, vars(self.settings), self.job.agent.model)
        return AdapterRef(f"{self.job.name}@{version}", str(self.folder / version))

    def agent(self, adapters: Sequence[AdapterRef]) -> AgentSpec:
        base = self.job.agent
        version = f"{base.version}+{adapters[0].name}"
        return replace(base, version=version, adapters=tuple(adapters))


def _reward(trajectory: Trajectory, reward: str) -> float:
    """NaN for a lost episode. No tokens are needed."""
    lost = trajectory.score is None or trajectory.failure is not None
    return float("nan") if lost else paid(trajectory, reward)
