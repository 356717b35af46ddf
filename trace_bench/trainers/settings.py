"""The trainers' settings. No heavy imports, so that the command line stays fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trace_bench.core.checked import PLACE, number
from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import Recipe

GPU = 80  # assumed GB of memory per GPU, for estimates


@dataclass(frozen=True)
class TrainerSettings(Recipe):
    """`trainer.*` of `trainer=local`."""

    patience: int = field(default=5, metadata=number(1))
    """Iterations with nothing left to learn before stopping early."""
    memory: float = field(default=4.0, metadata=number(0.01))
    """GB that a forward pass may keep for the backward pass: batches are divided to fit, and a
    sequence that does not fit alone has its layers computed again."""


@dataclass(frozen=True)
class VerlSettings(Recipe):
    """`trainer.*` of `trainer=verl`: the same recipe over several processes, GPUs and machines."""

    device: Literal["cuda", "cpu"] = "cuda"
    """cuda: rollouts by vLLM; cpu: by this project's engine in separate processes."""
    nnodes: int = field(default=1, metadata=number(1))
    """Machines."""
    gpus: int = field(default=1, metadata=number(1))
    """Of one machine, for training and its rollouts; with device=cpu: processes that share the
    model."""
    node_gpus: int | None = field(default=None, metadata=number(1) | PLACE)
    """All GPUs of one machine: the servers of agent, user and analyst have those that training
    leaves; null: as many as are needed."""
    gpu_gb: float = field(default=80.0, metadata=number(1) | PLACE)
    """GB of memory of a GPU, for what a dry run says."""
    serving: float = field(default=0.0, metadata=number(0, 0.9) | PLACE)
    """The share of the memory of training's GPUs that servers have (--gpu-memory-utilization);
    0: they have GPUs of their own."""
    tensor_parallel: int = field(default=1, metadata=number(1))
    """GPUs of one vLLM server."""
    ray_address: str | None = field(default=None, metadata=PLACE)
    """host:port of a running Ray cluster; null: one is started here."""
    workers: int = field(default=1, metadata=number(1) | PLACE)
    """Processes that run environments."""
    save_every: int = field(default=1, metadata=number(1))
    """Iterations between checkpoints; the last one is always kept."""
    deadline: float = field(default=600.0, metadata=number(1) | PLACE)
    """Seconds for one turn of the agent."""
    stall: float = field(default=3600.0, metadata=number(10) | PLACE)
    """Seconds without any progress before verl is stopped."""
    restarts: int = field(default=2, metadata=number(0) | PLACE)
    """How often verl is started again from its last checkpoint."""
    gpu_memory: float = field(default=0.5, metadata=number(0.05, 0.95))
    """The share of a GPU's memory for vLLM."""
    offload: bool = False
    """Keep weights and optimizer in host memory between uses."""
    flash_attention: bool = False
    """On GPUs: packed sequences by flash-attn, which compiles for an hour where no wheel fits; else
    padded, by torch."""
    verl: tuple[str, ...] = ()
    """More of verl's settings, in Hydra's notation:
    trainer.verl='["trainer.balance_batch=false"]'."""
    mismatch: float = field(default=0.05, metadata=number(0) | PLACE)
    """The mean difference between the sampler's and the trainer's log-probabilities that is an
    alarm (ten times as much stops the run); larger than with trainer=local, since vLLM samples in
    bfloat16."""


def full_iterations(rollouts: int, settings: VerlSettings, name: str) -> tuple[int, int]:
    """(iterations, groups of each) for trainer=verl, whose iterations are all of one size: as many
    full ones as fit in `rollouts`, or one smaller one of at least two groups that its optimizer
    steps and processes can share evenly. Raises UserError if not even that fits."""
    s, least = settings, min(2, settings.groups)
    for groups in range(min(s.groups, rollouts // s.group_size), least - 1, -1):
        if shared_evenly(s, groups):
            return rollouts // (groups * s.group_size), groups
    possible = [n for n in range(least, s.groups + 1) if shared_evenly(s, n)]
    if not possible:
        raise UserError(
            f"trainer.groups={s.groups} groups of {s.group_size} cannot be shared evenly by "
            f"{s.minibatches} optimizer steps and {s.gpus * s.nnodes} processes. Change "
            "trainer.groups, trainer.minibatches or trainer.gpus."
        )
    needed = f"{possible[0] * s.group_size} ({possible[0]} groups of {s.group_size})"
    raise UserError(
        f"training {name!r} has {rollouts} rollouts and needs at least {needed}. Raise the "
        "setting `budget`, or lower `trainer.group_size`."
    )


def shared_evenly(settings: VerlSettings, groups: int) -> bool:
    """Whether an iteration of so many groups divides evenly into its optimizer steps, and each of
    those over all processes."""
    step, rest = divmod(groups, settings.minibatches)
    ranks = settings.gpus * settings.nnodes
    return rest == 0 and step > 0 and step * settings.group_size % ranks == 0
