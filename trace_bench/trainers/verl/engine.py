"""verl's FSDP engine with one addition: a learning rate that falls linearly over a job's
iterations, as with trainer=local. verl imports this through
`actor_rollout_ref.model.external_lib`; it then finds the class for the CPU and for NVIDIA GPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from trace_bench.trainers.verl.spec import JOB_VARIABLE, read_spec


class Engine(FSDPEngineWithLMHead):
    """verl's engine with another learning-rate schedule."""

    def _build_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        spec = read_spec(Path(os.environ[JOB_VARIABLE]))
        if spec.decay == "constant":
            return super()._build_lr_scheduler(optimizer)
        # One step of the schedule is one iteration.
        return torch.optim.lr_scheduler.LambdaLR(optimizer, spec.rate)


def register() -> None:
    """Registers the engine for the CPU and NVIDIA GPUs; verl's own stays for other vendors."""
    for device, vendor in (("cpu", None), ("cuda", "nvidia")):
        EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device, vendor)(Engine)


register()
