"""The settings of `trainer=verl`. No heavy imports, so that the command line stays fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import Annotated, Literal

from trace_bench.core.checked import PLACE
from trace_bench.core.errors import UserError
from trace_bench.core.types import Meta, Natural, NotNegative, Positive
from trace_bench.trainers.algorithms import Recipe


@dataclass(frozen=True)
class VerlSettings(Recipe):
    """`trainer.*` of `trainer=verl`: the same recipe over several processes, GPUs and machines."""

    device: Literal["cuda", "cpu"] = "cuda"
    """cuda: rollouts by vLLM; cpu: by this project's engine in separate processes."""
    nnodes: Positive = 1
    """Machines."""
    gpus: Positive = 1
    """Of one machine, for training and its rollouts; with device=cpu: processes that share the
    model."""
    node_gpus: Positive | None = field(default=None, metadata=PLACE)
    """All GPUs of one machine: the servers of agent, user and analyst have those that training
    leaves; null: twice as many as train."""
    serving: Annotated[float, Meta(ge=0, le=0.9)] = field(default=0.0, metadata=PLACE)
    """The share of the memory of training's GPUs that servers have (--gpu-memory-utilization);
    0: they have GPUs of their own."""
    tensor_parallel: Positive = 1
    """GPUs of one vLLM server."""
    ray_address: str | None = field(default=None, metadata=PLACE)
    """host:port of a running Ray cluster; null: one is started here."""
    workers: Positive = field(default=1, metadata=PLACE)
    """Processes that run environments."""
    save_every: Positive = 1
    """Iterations between checkpoints; the last one is always kept."""
    stall: Annotated[float, Meta(ge=10)] = field(default=3600.0, metadata=PLACE)
    """Seconds without any progress before verl is stopped."""
    restarts: Natural = field(default=2, metadata=PLACE)
    """How often verl is started again from its last checkpoint."""
    gpu_memory: Annotated[float, Meta(ge=0.05, le=0.95)] = 0.5
    """The share of a GPU's memory for vLLM."""
    offload: bool = False
    """Keep weights and optimizer in host memory between uses."""
    verl: tuple[str, ...] = ()
    """More of verl's settings, in Hydra's notation:
    trainer.verl='["trainer.balance_batch=false"]'."""
    mismatch: NotNegative = field(default=0.05, metadata=PLACE)
    """The mean difference between the sampler's and the trainer's log-probabilities that is an
    alarm (ten times as much stops the run); larger than with trainer=local, since vLLM samples in
    bfloat16."""

    def __post_init__(self) -> None:
        """Raises UserError for what verl cannot share evenly, or round."""
        if self.alpha != int(self.alpha):
            raise UserError(f"trainer.alpha={self.alpha}; verl takes whole numbers. Change it.")
        if not self.shares(self.groups):
            raise UserError(
                f"trainer.groups={self.groups} groups of trainer.group_size={self.group_size} "
                f"cannot be shared evenly by trainer.minibatches={self.minibatches} optimizer "
                f"steps and {self.ranks} processes (trainer.gpus x trainer.nnodes). Change one of "
                "them."
            )
        if self.ranks % self.tensor_parallel:
            raise UserError(
                f"trainer.tensor_parallel={self.tensor_parallel} does not divide {self.ranks} GPUs "
                "(trainer.gpus x trainer.nnodes). Change one of them."
            )

    @property
    def ranks(self) -> int:
        """Processes that share the model, on all machines."""
        return self.gpus * self.nnodes

    def rows(self, context: int) -> int:
        """Training sequences of a pass: with verl's padding they have at most `batch_tokens`. They
        divide what a process has of a step, also where episodes have several."""
        each, most = lcm(self.ranks, self.group_size) // self.ranks, self.batch_tokens // context
        return max(n for n in range(1, each + 1) if each % n == 0 and n <= max(1, most))

    def shares(self, groups: int) -> bool:
        """Whether an iteration of so many groups divides evenly into its optimizer steps, and each
        of those over all processes."""
        step, rest = divmod(groups, self.minibatches)
        return rest == 0 and step > 0 and step * self.group_size % self.ranks == 0


def full_iterations(rollouts: int, settings: VerlSettings, name: str) -> tuple[int, int]:
    """(iterations, groups of each), which are all of one size: as many full ones as fit in
    `rollouts`, or one smaller one of at least two groups that can be shared evenly. Raises
    UserError if not even that fits."""
    size, least = settings.group_size, min(2, settings.groups)
    possible = [n for n in range(least, settings.groups + 1) if settings.shares(n)]
    if fits := [n for n in possible if n * size <= rollouts]:
        return rollouts // (fits[-1] * size), fits[-1]
    raise settings.too_few(name, rollouts, possible[0])
