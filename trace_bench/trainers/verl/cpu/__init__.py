"""verl's missing parts for machines without a GPU: the CPU as a platform (no memory of its own to
manage, gloo between processes), and in server.py a rollout server and a worker.

In each of its processes verl loads a plug-in by importing the module that VERL_USE_EXTERNAL_MODULES
names (`verl/__init__.py`): this one, unless trainer.device=cuda."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from trace_bench.trainers.verl.spec import CPU_ROLLOUT


def always(value: Any) -> Callable[..., Any]:
    """A function that gives this value, whatever it is given."""
    return lambda *_, **__: value


nothing = always(None)
"""What a CPU does where a GPU waits for its work, is chosen, frees memory or is profiled."""


class CpuPlatform(PlatformBase):
    """Uses processes in place of GPUs; Ray counts them as logical resources."""

    device_name = "cpu"
    vendor_name = "cpu"
    set_device = synchronize = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing

    @property
    def device_module(self) -> Any:
        return device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never detected: used only if VERL_PLATFORM selects it

    def current_device(self) -> Any:
        return "cpu"  # `tensor.to(0)` would mean a GPU

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def device_module() -> Any:
    """The functions of `torch.cuda` that verl uses, for a CPU."""
    idle = (
        "synchronize", "set_device", "empty_cache", "ipc_collect", "reset_peak_memory_stats",
        "set_per_process_memory_fraction",
    )  # fmt: skip
    memory = "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"
    return SimpleNamespace(
        **dict.fromkeys(idle, nothing),
        **dict.fromkeys(memory, always(0)),
        is_available=always(True),
        device_count=always(1),
        current_device=always("cpu"),
        current_stream=torch.cpu.current_stream,
        Stream=torch.cpu.Stream,
        stream=always(nullcontext()),
        Event=lambda *_, **__: SimpleNamespace(record=nothing, synchronize=nothing),
        mem_get_info=always((1, 1)),
        get_device_name=always("cpu"),
        get_device_properties=always(SimpleNamespace(name="cpu", total_memory=1)),
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
    )


def _replica() -> Any:
    from trace_bench.trainers.verl.cpu.server import CpuReplica

    return CpuReplica


def register() -> None:
    """Registers only the platform, which verl needs while it is being imported. The rollout
    registries are in parts of verl that are imported later (`register_rollout`)."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)


def register_rollout() -> None:
    """Registers the rollout server, after verl's import."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(CPU_ROLLOUT, _replica)
    _ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = "trace_bench.trainers.verl.cpu.server.CpuRollout"


register()
