"""Makes platform and rollout server known to verl; importing this module is how verl loads a
plug-in (`verl/__init__.py`, VERL_USE_EXTERNAL_MODULES)."""

from __future__ import annotations

from typing import Any

from verl.plugin.platform.platform_manager import PlatformRegistry

from trace_bench.trainers.verl.cpu.platform import CpuPlatform
from trace_bench.trainers.verl.spec import CPU_ROLLOUT


def _replica() -> Any:
    from trace_bench.trainers.verl.cpu.server import CpuReplica

    return CpuReplica


def register() -> None:
    """The platform only, since verl asks for it while it is being imported; the registries of
    rollouts are in parts of verl that are not there yet (`register_rollout`)."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)


def register_rollout() -> None:
    """Called by those who have verl whole and need rollouts: launch.py, steps.Runner, CpuWorker."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(CPU_ROLLOUT, _replica)
    _ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = "trace_bench.trainers.verl.cpu.server.CpuRollout"


register()
