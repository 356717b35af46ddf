"""What can be known to be wrong before anything is played. Nothing here imports verl."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.trainers.adapters import fresh
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl.launch import REFUSED
from trace_bench.trainers.verl.spec import JobSpec

VERL = "0.9.1"
TRANSFORMERS = ((5, 5, 3), (5, 11, 0))
_INSTALL = "pip install 'trace_bench[verl]'"


def preflight(spec: JobSpec, settings: VerlSettings, *, whole: bool = True) -> None:
    """Raises UserError with what to change, cheap checks first. `spec`: any job of the run;
    `whole`: ask verl too, which takes as long as importing it."""
    for check in CHECKS:
        check(settings)
    fresh(spec.model, settings.target_modules, settings.rank, 0)
    if not whole:
        return
    with tempfile.TemporaryDirectory(prefix="trace_bench-") as folder:
        check_settings(spec, Path(folder))


def _packages(settings: VerlSettings) -> None:
    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    found = version("verl")
    if found is None:
        raise UserError(
            f"trainer=verl needs the package verl, which is not installed: {_INSTALL}, or set "
            "`trainer` to local."
        )
    if found != VERL:
        raise UserError(f"trainer=verl works with verl {VERL}; {found} is installed: {_INSTALL}.")
    transformers = metadata.version("transformers")
    numbers = tuple(int(n) for n in transformers.split(".")[:3] if n.isdigit())
    low, high = TRANSFORMERS
    if not low <= numbers < high:
        raise UserError(
            f"trainer=verl works with transformers from {_dotted(low)} to below {_dotted(high)}; "
            f"{transformers} is installed: {_INSTALL}."
        )
    if settings.flash_attention and settings.device == "cuda" and version("flash_attn") is None:
        raise UserError(
            "trainer.flash_attention=true needs the package flash-attn, which is not installed: "
            "pip install 'verl[fsdp]', or set it to false."
        )
    if settings.device == "cuda" and version("vllm") is None:
        raise UserError(
            "trainer.device=cuda samples with vLLM, which is not installed: pip install "
            "'verl[vllm]', or set trainer.device=cpu."
        )


def _shape(settings: VerlSettings) -> None:
    """Whether batches can be shared out evenly."""
    s, groups, ranks = settings, settings.groups, settings.gpus * settings.nnodes
    if s.alpha != int(s.alpha):
        raise UserError(f"trainer.alpha={s.alpha}; verl takes whole numbers only. Change it.")
    if groups % s.minibatches:
        raise UserError(
            f"trainer.groups={groups} cannot be cut into trainer.minibatches={s.minibatches} equal "
            "parts. Change one of them."
        )
    batch = groups // s.minibatches * s.group_size
    if batch % ranks:
        raise UserError(
            f"{batch} rollouts of one optimizer step cannot be shared evenly by {ranks} processes "
            "(trainer.gpus x trainer.nnodes). Change trainer.groups, trainer.group_size or "
            "trainer.gpus."
        )
    if ranks % s.tensor_parallel:
        raise UserError(
            f"trainer.tensor_parallel={s.tensor_parallel} does not divide {ranks} GPUs "
            "(trainer.gpus x trainer.nnodes). Change one of them."
        )


def _machines(settings: VerlSettings) -> None:
    if settings.ray_address is not None:
        _reachable(settings.ray_address)
    elif settings.nnodes > 1:
        raise UserError(
            f"trainer.nnodes={settings.nnodes} needs a Ray cluster that runs: start it with `ray "
            "start` on each machine and set trainer.ray_address to its head's host:port."
        )
    elif settings.device == "cuda":
        import torch

        count = torch.cuda.device_count()
        if count < settings.gpus:
            raise UserError(
                f"trainer.gpus={settings.gpus}, and this machine has {count}. Lower trainer.gpus, "
                "set trainer.ray_address to a cluster, or trainer.device=cpu."
            )


def _reachable(address: str) -> None:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(
            f"trainer.ray_address={address!r} is not an address; allowed: host:port, such as "
            "10.0.0.1:6379. Change `trainer.ray_address`."
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at trainer.ray_address={address} ({error}). Start it with "
            "`ray start --head`, change the address, or set it to null to start Ray here."
        ) from error


CHECKS = (_packages, _shape, _machines)
"""What can be checked of the settings alone."""


def check_settings(spec: JobSpec, folder: Path) -> None:
    """verl's own opinion of its settings, from a process of its own."""
    spec.write(folder)
    command = [sys.executable, "-m", "trace_bench.trainers.verl.launch", str(folder), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == REFUSED:
        raise UserError(refusal(done.stdout))
    if done.returncode:
        raise UserError(
            f"verl's settings could not be checked (exit code {done.returncode}): "
            f"{done.stderr[-800:]}"
        )


def refusal(text: str) -> str:
    """What launch.py said last."""
    said = [line for line in text.splitlines() if line.startswith("refused: ")]
    return said[-1].removeprefix("refused: ") if said else "verl refused its settings"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
