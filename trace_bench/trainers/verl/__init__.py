"""`trainer=verl`: the same training over several processes, GPUs and machines, by verl and Ray.

    trainer.py   in the run's process: starts verl, keeps the ledger
    job.py       the job's folder, which it prepares
    process.py   runs verl as a process group: checks, watches and restarts it; the started process
    collector.py collects episodes for the ledger, or takes a job back to an iteration's start
    arrivals.py  reads what verl's processes write: episodes, metrics, checkpoints
    preflight.py checks before the first rollout
    spec.py      the job description that verl's processes read
    compose.py   converts our settings to verl's
    task.py      verl's task runner, with the trainer below
    steps.py     verl's trainer, extended with the course of tasks, metrics and stop conditions
    sampler.py   verl's buffer, from which it takes an iteration's episodes
    advantages.py  the advantages of verl's rows
    lessons.py   what a teacher says of verl's rows
    rows.py      episodes of several rows: their advantages and weights
    losses.py    the algorithm's loss in verl's place
    episodes.py  runs our episodes in verl's workers
    outputs.py   an episode as verl trains on it
    tokens.py    the policy of these episodes, over verl's token servers
    export.py    converts checkpoints to adapters in PEFT's format
    engine.py    the learning rate of the course, the number of optimizer steps
    nodes.py     what every machine must have
    hours.py     how long it takes, for a dry run
    cpu/         verl's missing parts for machines without a GPU

Nothing but this file is imported unless `trainer=verl` is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trace_bench.core.protocols import RunContext
from trace_bench.trainers.settings import VerlSettings

if TYPE_CHECKING:
    from trace_bench.trainers.verl.trainer import VerlTrainer


def verl_trainer(settings: VerlSettings, run: RunContext) -> VerlTrainer:
    """`trainer=verl`: the same GRPO with LoRA by verl over Ray: several processes, GPUs and
    machines. Needs `pip install '.[verl]'`, and on GPUs 'verl[vllm]' too. One machine's CPU:
    python -m trace_bench method=grpo env=toolsandbox trainer=verl trainer.device=cpu trainer.gpus=2

    Does not import or start verl."""
    from trace_bench.trainers.verl.trainer import VerlTrainer

    return VerlTrainer(settings, run)
