"""The trainers' settings. No heavy imports, so that the command line stays fast."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from trace_bench.core.checked import PLACE, number
from trace_bench.core.errors import UserError

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

GPU = 80  # assumed GB of memory per GPU, for estimates


@dataclass(frozen=True)
class Recipe:
    """GRPO with LoRA, for every trainer. The algorithm follows TRACE, section 3 (groups of rollouts
    of one task, standardization within a group, no KL term, linear decay, all linear projections);
    the default sizes suit the tiny agent. 30B models need a learning rate near 1e-5 and groups of
    16."""

    group_size: int = field(default=8, metadata=number(2))  # rollouts of one task
    groups: int = field(default=4, metadata=number(1))  # tasks in one iteration
    learning_rate: float = field(default=3e-3, metadata=number(0))
    decay: Literal["linear", "constant"] = "linear"  # over the job's rollouts, down to 0
    # Which task comes next: each epoch is a shuffle; or tasks whose latest groups differ are
    # preferred; or a task whose latest group was constant sits out an epoch
    order: Literal["shuffled", "prioritized", "skipping"] = "shuffled"
    # How often an iteration's constant groups are replaced by new ones (DAPO, Yu et al. 2025, arXiv
    # 2503.14476, section 3.2, samples until none is left); all of them are paid for
    resample: int = field(default=0, metadata=number(0))
    # How many rollouts of a group run with a hint (TRACE, section 2: 4 to 8 of 16, optional)
    hinted: int = field(default=0, metadata=number(0))
    rank: int = field(default=16, metadata=number(1))
    alpha: float = field(default=32.0, metadata=number(0))  # updates are scaled by alpha / rank
    target_modules: tuple[str, ...] = LINEAR
    epochs: int = field(default=2, metadata=number(1))  # passes over one iteration's rollouts
    minibatches: int = field(default=1, metadata=number(1))  # optimizer steps in one pass
    clip_low: float = field(default=0.2, metadata=number(0, 1))
    clip_high: float = field(default=0.2, metadata=number(0))
    dual_clip: float | None = field(default=None, metadata=number(1))
    aggregate: Literal["trajectory", "token"] = "trajectory"
    normalize_std: bool = True
    weight_decay: float = field(default=0.0, metadata=number(0))
    max_grad_norm: float = field(default=1.0, metadata=number(0))
    batch_tokens: int = field(default=16384, metadata=number(1))  # in one forward pass
    # The mean difference between the sampler's and the trainer's log-probabilities that is an alarm
    mismatch: float = field(default=0.01, metadata=number(0) | PLACE)

    def __post_init__(self) -> None:
        if self.hinted >= self.group_size:
            raise UserError(
                f"trainer.hinted={self.hinted} of trainer.group_size={self.group_size} rollouts: "
                "at least one runs without a hint. Lower `trainer.hinted`."
            )

    def trained(self) -> dict[str, Any]:
        """The settings that decide what is trained: those of a job's identity, as plain data."""
        fields = [f for f in dataclasses.fields(self) if f.metadata.get("identity", True)]
        return {f.name: getattr(self, f.name) for f in fields}


@dataclass(frozen=True)
class TrainerSettings(Recipe):
    """`trainer=local`."""

    patience: int = field(default=5, metadata=number(1))  # perfect iterations before stopping
    memory: float = field(default=4.0, metadata=number(0.01))  # GB that a forward pass may keep


@dataclass(frozen=True)
class VerlSettings(Recipe):
    """`trainer=verl`: the same recipe over several processes, GPUs and machines.

    `device`: cuda uses vLLM for rollouts; cpu uses this project's own engine in separate processes.
    `gpus`: per machine (on a CPU: processes that share the model). `tensor_parallel`: GPUs per vLLM
    server. `ray_address`: a running cluster ("host:port"); None starts one here. `workers`:
    processes that run environments. `save_every`: iterations between checkpoints; the last one is
    always kept. `validate_every`: iterations between verl's own validations on the development
    tasks (0: never); their episodes are in `adapters/<name>/verl/validation`, not in the ledger.
    `deadline`: seconds for one turn of the agent. `stall`: seconds without any progress after which
    the processes are stopped. `restarts`: how often training is restarted from the last checkpoint.
    `gpu_memory`: the share of a GPU's memory for vLLM. `offload`: keep weights and optimizer in
    host memory between uses. `flash_attention`: on GPUs, use packed sequences with the package
    flash-attn instead of padded ones with torch. `verl`: further settings of verl, in Hydra's
    notation. `mismatch` is larger than with trainer=local: vLLM samples in bfloat16."""

    device: Literal["cuda", "cpu"] = "cuda"
    nnodes: int = field(default=1, metadata=number(1))
    gpus: int = field(default=1, metadata=number(1))
    tensor_parallel: int = field(default=1, metadata=number(1))
    ray_address: str | None = field(default=None, metadata=PLACE)
    workers: int = field(default=1, metadata=number(1) | PLACE)
    save_every: int = field(default=1, metadata=number(1))
    validate_every: int = field(default=0, metadata=number(0))
    deadline: float = field(default=600.0, metadata=number(1) | PLACE)
    stall: float = field(default=3600.0, metadata=number(10) | PLACE)
    restarts: int = field(default=2, metadata=number(0) | PLACE)
    gpu_memory: float = field(default=0.5, metadata=number(0.05, 0.95))
    offload: bool = False
    flash_attention: bool = False
    verl: tuple[str, ...] = ()
    mismatch: float = field(default=0.05, metadata=number(0) | PLACE)

    def __post_init__(self) -> None:
        """verl reads all tasks from one file before it starts, so what the rewards of a group say
        cannot change them, and it trains on what was sampled, prompts included."""
        super().__post_init__()
        if self.hinted:
            raise UserError(
                f"trainer.hinted={self.hinted} takes hints out of the prompts before training, and "
                "trainer=verl trains on the prompts of the rollouts; allowed there: hinted=0. "
                "Change `trainer.hinted`, or use trainer=local."
            )
        for name, value, needed in (
            ("order", self.order, "shuffled"),
            ("resample", self.resample, 0),
        ):
            if value != needed:
                raise UserError(
                    f"trainer.{name}={value} chooses tasks by the rewards of earlier groups, but "
                    "trainer=verl fixes all tasks before it starts; allowed there: "
                    f"{name}={needed}. Change `trainer.{name}`, or use trainer=local."
                )


def full_iterations(rollouts: int, settings: VerlSettings, name: str) -> tuple[int, int]:
    """(iterations, groups of each) for trainer=verl, whose iterations are all of one size: as many
    full ones as fit in `rollouts`, or one smaller one of at least two groups that its optimizer
    steps and processes can share evenly.

    Raises UserError if not even that fits."""
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
