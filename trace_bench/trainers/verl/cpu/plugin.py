"""Makes platform and rollout server known to verl; importing this module is how verl loads a
plug-in (`verl/__init__.py`, VERL_USE_EXTERNAL_MODULES)."""

from __future__ import annotations

from typing import Any

from verl.plugin.platform.platform_manager import PlatformRegistry

from trace_bench.trainers.verl.cpu.platform import CpuPlatform

NAME = "trace_bench"
"""The rollout's name in verl's settings (actor_rollout_ref.rollout.name)."""


def _replica() -> Any:
    from trace_bench.trainers.verl.cpu.server import CpuReplica

    return CpuReplica


def register() -> None:
    """The platform now, since verl asks for it early. The server's registries import most of verl,
    which must not happen while verl itself is being imported: they are filled when first asked."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)


def register_rollout() -> None:
    """Called by whoever has verl whole: `launch.py`, and workers through model.external_lib."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(NAME, _replica)
    _ROLLOUT_REGISTRY[(NAME, "async")] = "trace_bench.trainers.verl.cpu.server.CpuRollout"


register()
