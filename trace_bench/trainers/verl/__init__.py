"""`trainer=verl`: the same training over several processes, GPUs and machines, by verl and Ray.

    in the run's process: trainer.py keeps the ledger, job.py writes the job's folder and makes
    adapters of checkpoints, process.py starts verl, watches it and collects what it writes;
    before that preflight.py and machines.py check and estimate
    in verl's trainer: steps.py with rows.py and advantages.py
    in its workers: episodes.py with tokens.py; engine.py
    in all of them: spec.py has the job and what its processes write, compose.py converts our
    settings to verl's; cpu/ is what verl lacks on machines without a GPU

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
