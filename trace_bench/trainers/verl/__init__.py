"""`trainer=verl`: the same training over several processes, GPUs and machines, by verl and Ray.

    in the run's process: trainer.py keeps the ledger, job.py writes the job's folder, process.py
    starts verl and watches it, collector.py and arrivals.py take what it writes, export.py makes
    adapters of checkpoints; before that preflight.py and machines.py check and estimate
    in verl's trainer: task.py, steps.py with sampler.py, advantages.py and lessons.py
    in its workers: episodes.py with outputs.py and tokens.py; engine.py with losses.py
    in all of them: spec.py describes the job, compose.py converts our settings to verl's, nodes.py
    checks machines; cpu/ is what verl lacks on machines without a GPU

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
