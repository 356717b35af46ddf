"""A trainer of your own: evolution strategies on a LoRA adapter, without a gradient.

    python -m trace_bench method=rl trainer=custom trainer.factory=es:Evolution budget=640

Every member of an iteration is the adapter with noise on its matrices B, in pairs of opposite
noise; all play the same tasks, and the adapter moves by the noise, weighted by what the members
earned (Qiu et al. 2025, arXiv 2509.24372, algorithm 1). Of the model only its configuration is
read, so it works with servers too. Members act greedily: they differ enough.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import trace_bench as tb
from trace_bench.trainers.adapters import Pair, fresh, write_adapter
from trace_bench.trainers.algorithms import LINEAR


class Evolution(tb.Trainer):
    """`pairs`: of members; `tasks`: that each plays in an iteration; `sigma`: deviation of the
    noise; `step`: how far the adapter moves along its mean; `rank`, `alpha`: of the adapter."""

    def __init__(
        self, pairs: int = 15, tasks: int = 2, sigma: float = 0.15, step: float = 0.15,
        rank: int = 16, alpha: float = 32.0,
    ) -> None:  # fmt: skip
        self.pairs, self.tasks, self.sigma, self.step = pairs, tasks, sigma, step
        self.rank = rank
        self.lora = {"rank": rank, "alpha": alpha, "target_modules": LINEAR}

    def plan_training(self, rollouts: int, name: str, points: object) -> str | None:
        if rollouts < 2 * self.pairs:
            raise tb.UserError(
                f"training {name!r} has {rollouts} rollouts and needs at least {2 * self.pairs}. "
                "Raise `budget`, or lower `trainer.options.pairs`."
            )
        return "the learning goes by whole iterations"

    def train(self, job: tb.TrainingJob, lab: tb.Lab) -> tb.AgentSpec:
        mean = fresh(job.agent.model, LINEAR, self.rank, job.seed)
        folder, agent = lab.folder / "adapters" / job.name, job.agent
        members, spent, iteration = 2 * self.pairs, 0, 0
        while count := min(self.tasks, (job.rollouts - spent) // members):
            tasks = [job.tasks[(spent // members + n) % len(job.tasks)] for n in range(count)]
            rewards = self.play(iteration, tasks, mean, folder, job, lab)
            spent, iteration = spent + members * count, iteration + 1
            fitness = (rewards - rewards.mean(0)).mean(1)  # of each member, against the others
            if steps := int(fitness.std() > 0):
                fitness = fitness / fitness.std()
                along = (fitness[0::2] - fitness[1::2]) * (self.step / members)
                mean = moved(mean, job.seed, iteration - 1, dict(enumerate(along.tolist())))
            agent = self.agent(job, [self.write(folder / f"{iteration:04d}", mean, job)])
            reward = float(rewards.mean())
            lab.metric(phase="training", iteration=iteration - 1, reward=reward, steps=steps)
            lab.checkpoint(job.whole(agent) if job.whole else agent)
        return agent

    def play(
        self, iteration: int, tasks: list[tb.Task], mean: Mapping[str, Pair], folder: Path,
        job: tb.TrainingJob, lab: tb.Lab,
    ) -> torch.Tensor:  # fmt: skip
        """The rewards [members, tasks]; a lost episode counts as none of them, 0."""
        adapters = []
        for n in range(2 * self.pairs):
            weights = moved(mean, job.seed, iteration, {n // 2: self.sigma * (-1) ** n})
            adapters.append(self.write(folder / f"{iteration:04d}-{n:03d}", weights, job))
        played = lab.rollouts(
            f"train/{job.name}/{iteration:04d}", self.agent(job, adapters), tasks * len(adapters),
            purpose=tb.Purpose.TRAINING, temperature=0.0,
            route=[adapter.name for adapter in adapters for _ in tasks],
        )  # fmt: skip
        for path in folder.glob("[0-9]*"):
            shutil.rmtree(path)
        rewards = [getattr(t.score, job.reward) if t.score else 0.0 for t in played]
        return torch.tensor(rewards, dtype=torch.float64).view(len(adapters), len(tasks))

    def write(self, folder: Path, weights: dict[str, Pair], job: tb.TrainingJob) -> tb.AdapterRef:
        write_adapter(folder, weights, self.lora, job.agent.model)
        return tb.AdapterRef(f"{job.name}@{folder.name}", str(folder))

    def agent(self, job: tb.TrainingJob, adapters: Sequence[tb.AdapterRef]) -> tb.AgentSpec:
        return replace(job.agent, version=adapters[0].name, adapters=tuple(adapters))


def moved(
    mean: Mapping[str, Pair], seed: int, iteration: int, along: Mapping[int, float]
) -> dict[str, Pair]:
    """The mean plus these multiples of the pairs' noise, which follows from the seed."""
    b = {name: pair.b.clone() for name, pair in mean.items()}
    for pair, factor in along.items():
        noise = torch.Generator().manual_seed((seed + 7919 * iteration + pair) % 2**63)
        for weights in b.values():
            weights += factor * torch.randn(weights.shape, generator=noise)
    return {name: Pair(mean[name].a, weights) for name, weights in b.items()}
