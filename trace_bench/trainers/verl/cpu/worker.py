"""verl's training worker on a CPU. verl asks torch for the process group "cpu:gloo,cpu:gloo", which
torch refuses; if a group exists already, verl uses that one."""

from __future__ import annotations

from typing import Any

import torch
from verl.workers.engine_workers import ActorRolloutRefWorker

from trace_bench.trainers.verl.cpu.plugin import register_rollout


class CpuWorker(ActorRolloutRefWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")  # rank and address are in the environment
        register_rollout()
        super().__init__(*args, **kwargs)
