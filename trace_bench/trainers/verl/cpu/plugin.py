"""Registers the platform and the rollout server with verl, which loads a plug-in by importing its
module (`verl/__init__.py`, VERL_USE_EXTERNAL_MODULES)."""

from __future__ import annotations

from typing import Any

from verl.plugin.platform.platform_manager import PlatformRegistry

from trace_bench.trainers.verl.cpu.platform import CpuPlatform
from trace_bench.trainers.verl.spec import CPU_ROLLOUT


def _replica() -> Any:
    from trace_bench.trainers.verl.cpu.server import CpuReplica

    return CpuReplica


def register() -> None:
    """Registers only the platform, which verl needs while it is being imported. The rollout
    registries are in parts of verl that are imported later (`register_rollout`)."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)


def register_rollout() -> None:
    """Registers the rollout server. Called after verl's import, by launch.py, steps.Runner and
    CpuWorker."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(CPU_ROLLOUT, _replica)
    _ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = "trace_bench.trainers.verl.cpu.server.CpuRollout"


register()
