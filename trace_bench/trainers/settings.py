"""The trainers' settings. No heavy imports, so that the command line stays fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from trace_bench.core.checked import BY_MODEL, PLACE, identifying, number
from trace_bench.core.errors import UserError
from trace_bench.trainers.algorithms import Algorithm

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

FUSED = {"qkv_proj": LINEAR[:3], "gate_up_proj": LINEAR[4:6]}
"""vLLM's names for layers that it computes as one."""

GPU = 80  # assumed GB of memory per GPU, for estimates


@dataclass(frozen=True)
class Recipe:
    """GRPO with LoRA, for every trainer. The algorithm follows TRACE, section 3 (groups of rollouts
    of one task, standardization within a group, no KL term, linear decay, all linear projections);
    the default sizes suit the tiny agent; 30B models need groups of 16."""

    algorithm: Algorithm = field(default_factory=Algorithm)
    """How rollouts become advantages and a loss: --help trainer.algorithm lists them all; one of
    your own as module:attribute (docs/algorithms.md)."""
    group_size: int = field(default=8, metadata=number(2))
    """Rollouts of one task."""
    groups: int = field(default=4, metadata=number(1))
    """Tasks in one iteration."""
    learning_rate: float = field(default=3e-3, metadata=number(0) | BY_MODEL)
    """Of AdamW, at the first step; null: what suits the model (docs/models.md)."""
    decay: Literal["linear", "constant"] = "linear"
    """linear: over the rollouts of one adapter, down to 0; or constant."""
    order: Literal["shuffled", "prioritized"] = "shuffled"
    """Which task comes next. shuffled: each epoch is a shuffle; prioritized: tasks whose latest
    groups differ come first."""
    resample: int = field(default=0, metadata=number(0))
    """How often an iteration's constant groups are replaced by new ones (DAPO, Yu et al. 2025,
    arXiv 2503.14476, section 3.2, samples until none is left); all of them are paid for."""
    rank: int = field(default=16, metadata=number(1))
    """Of the LoRA matrices."""
    alpha: float = field(default=32.0, metadata=number(0))
    """Updates are scaled by alpha / rank."""
    target_modules: tuple[str, ...] = LINEAR
    """The linear layers that have an adapter. Of a mixture of experts those of attention: the
    experts of a layer are one parameter in transformers 5, which LoRA on layers does not reach."""
    epochs: int = field(default=2, metadata=number(1))
    """Passes over the rollouts of one iteration."""
    minibatches: int = field(default=1, metadata=number(1))
    """Optimizer steps in one pass."""
    clip_low: float = field(default=0.2, metadata=number(0, 1))
    """Lower clip of the probability ratio."""
    clip_high: float = field(default=0.2, metadata=number(0))
    """Upper clip of the probability ratio."""
    dual_clip: float | None = field(default=None, metadata=number(1))
    """Bound for tokens with a negative advantage; null: none."""
    aggregate: Literal["trajectory", "token"] = "trajectory"
    """trajectory: the mean over each trajectory's tokens first; token: over all tokens."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""
    weight_decay: float = field(default=0.0, metadata=number(0))
    """Of AdamW."""
    max_grad_norm: float = field(default=1.0, metadata=number(1e-9))
    """Clip of the gradient's norm."""
    batch_tokens: int = field(default=16384, metadata=number(1))
    """Tokens (of one process) in one forward pass."""
    mismatch: float = field(default=0.01, metadata=number(0) | PLACE)
    """The mean difference between the sampler's and the trainer's log-probabilities that is an
    alarm; ten times as much stops the run."""

    def __post_init__(self) -> None:
        self.algorithm.check(self)

    @property
    def served_modules(self) -> list[str]:
        """The layers of an adapter as vLLM is told them, which else makes room for adapters in all
        layers, a mixture's experts included."""
        fused = [name for name, parts in FUSED.items() if set(parts) & set(self.target_modules)]
        return [*self.target_modules, *fused]

    @property
    def by(self) -> str:
        """The algorithm where it is not GRPO, and what it is given, in words."""
        if self.algorithm == Algorithm():
            return ""
        given = ", ".join(self.algorithm.given)
        return f" by {self.algorithm.name}" + (f", given {given}" if given else "")

    def trained(self) -> dict[str, Any]:
        """The settings that decide what is trained: those of a job's identity, as plain data."""
        return identifying(self)


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
