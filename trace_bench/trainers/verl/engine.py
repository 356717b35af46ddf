"""verl's FSDP engine with two additions: a learning rate that falls linearly over a job's
iterations, as with trainer=local, and the number of optimizer steps that had a gradient; and the
algorithm's loss (`losses`). verl imports this through `actor_rollout_ref.model.external_lib`; it
then finds the class for the CPU and for NVIDIA GPUs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from trace_bench.trainers.verl import losses
from trace_bench.trainers.verl.spec import JOB_VARIABLE, STEPS, read_spec


class VerlEngine(FSDPEngineWithLMHead):
    """verl's engine with another learning-rate schedule, and a count of its steps."""

    _stepped = 0  # optimizer steps of this iteration that had a gradient

    def optimizer_step(self) -> float:
        """The norm of the gradient, of all processes together."""
        norm = float(super().optimizer_step())
        self._stepped += math.isfinite(norm) and norm > 0.0
        return norm

    def train_batch(self, data: Any, loss_function: Any) -> Any:
        out = super().train_batch(data, loss_function)
        if self.is_mp_src_rank_with_outputs():
            out["metrics"][STEPS] = [self._stepped]  # a list, as verl joins those of all processes
        return out

    def lr_scheduler_step(self) -> Any:
        """Ends an iteration."""
        self._stepped = 0
        return super().lr_scheduler_step()

    def _build_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        spec = read_spec(Path(os.environ[JOB_VARIABLE]))
        if spec.trainer.decay == "constant":
            return super()._build_lr_scheduler(optimizer)
        # One step of the schedule is one iteration.
        return torch.optim.lr_scheduler.LambdaLR(optimizer, spec.rate)


def register() -> None:
    """Registers the engine for the CPU and NVIDIA GPUs; verl's own stays for other vendors."""
    for device, vendor in (("cpu", None), ("cuda", "nvidia")):
        EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device, vendor)(VerlEngine)


register()
losses.register()
