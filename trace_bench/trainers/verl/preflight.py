"""Checks before the first rollout: packages, the machine, the settings' shape, roles. Nothing here
imports verl, nor, before the job starts, what verl imports."""

from __future__ import annotations

import os
import shutil
import socket
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError
from trace_bench.llm.roles import IN_EPISODES
from trace_bench.trainers.settings import VerlSettings, shared_evenly
from trace_bench.trainers.verl.process import check_settings
from trace_bench.trainers.verl.spec import JobSpec

VERL = "0.9.1"
TRANSFORMERS = ("5.5.3", "5.11.0")  # the first that it works with, the first that it does not
TRL = "1.16"  # the first without the class with a value head that verl imports where there is a trl
_INSTALL = "pip install '.[verl]'"


def preflight(spec: JobSpec, *, whole: bool = True) -> None:
    """Raises UserError that says what to change; cheap checks first. `spec`: any job of the run;
    `whole`: also let verl check its settings, which takes as long as importing it."""
    for check in CHECKS:
        check(spec.trainer)
    _divergence(spec)
    _roles(spec)
    from trace_bench.trainers.adapters import fresh

    fresh(spec.agent.model, spec.trainer.target_modules, spec.trainer.rank, 0)
    if not whole:
        return
    with tempfile.TemporaryDirectory(prefix="trace_bench-") as folder:
        check_settings(spec, Path(folder))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split(".")[:3] if n.isdigit())


def _packages(settings: VerlSettings) -> None:
    if (verl := _version("verl")) is None:
        raise UserError(
            f"trainer=verl needs the package verl, which is not installed: {_INSTALL}, or set "
            "`trainer` to local."
        )
    if verl != VERL:
        raise UserError(f"trainer=verl works with verl {VERL}; {verl} is installed: {_INSTALL}.")
    transformers, (low, high) = metadata.version("transformers"), TRANSFORMERS
    if not _numbers(low) <= _numbers(transformers) < _numbers(high):
        raise UserError(
            f"trainer=verl works with transformers from {low} to below {high}; {transformers} is "
            f"installed: {_INSTALL}."
        )
    if (trl := _version("trl")) is not None and _numbers(trl) >= _numbers(TRL):
        raise UserError(
            f"trl {trl} is installed, of which verl {VERL} imports a class that it has no more. "
            "Nothing here needs trl: `pip uninstall trl`, or pip install 'trl==0.27.0'."
        )
    if settings.device == "cpu":
        return
    if settings.flash_attention and _version("flash_attn") is None:
        raise UserError(
            "trainer.flash_attention=true needs the package flash-attn, which is not installed: "
            "install a wheel of it for your torch and CUDA (without one, pip compiles it for an "
            "hour), or set trainer.flash_attention=false."
        )
    if _version("vllm") is None:
        raise UserError(
            "trainer.device=cuda samples with vLLM, which is not installed: pip install "
            "'verl[vllm]', or set trainer.device=cpu."
        )


def _compiler(settings: VerlSettings) -> None:
    """Raises UserError where Triton, whose kernels vLLM runs, cannot compile: it does so at run
    time, with a C compiler and Python's headers (triton/runtime/build.py)."""
    if settings.device == "cpu" or settings.ray_address is not None:  # a cluster: on each machine
        return
    compilers = [name for name in (os.environ.get("CC"), "gcc", "clang") if name]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    missing = "" if headers.is_file() else str(headers)
    missing = missing if any(map(shutil.which, compilers)) else "a C compiler (gcc)"
    if missing:
        raise UserError(
            f"trainer.device=cuda compiles kernels by Triton at run time, and {missing} is not "
            "here: apt-get install gcc libc6-dev python3-dev (the image of `python -m "
            "trace_bench.sandbox.build verl` has them), or set trainer.device=cpu."
        )


def _shape(settings: VerlSettings) -> None:
    """Raises UserError unless batches can be shared evenly."""
    s, ranks = settings, settings.gpus * settings.nnodes
    if s.alpha != int(s.alpha):
        raise UserError(f"trainer.alpha={s.alpha}; verl takes whole numbers only. Change it.")
    if not shared_evenly(s, s.groups):
        raise UserError(
            f"trainer.groups={s.groups} groups of trainer.group_size={s.group_size} cannot be "
            f"shared evenly by trainer.minibatches={s.minibatches} optimizer steps and {ranks} "
            "processes (trainer.gpus x trainer.nnodes). Change one of them."
        )
    if ranks % s.tensor_parallel:
        raise UserError(
            f"trainer.tensor_parallel={s.tensor_parallel} does not divide {ranks} GPUs "
            "(trainer.gpus x trainer.nnodes). Change one of them."
        )


def _divergence(spec: JobSpec) -> None:
    """Raises UserError where verl would weigh the divergence from the base model by rows, of which
    an episode has several."""
    from trace_bench.policies.chat import Chat
    from trace_bench.policies.loading import load_tokenizer

    algorithm, model = spec.trainer.algorithm, spec.agent.model
    by_rows = algorithm.kl > 0 and algorithm.aggregation(spec.trainer)[0] != "token"
    if not by_rows or spec.thoughts == "keep":
        return
    if Chat(load_tokenizer(model), model, spec.thinking).drops:
        raise UserError(
            f"trainer.algorithm.kl={algorithm.kl:g} with trainer=verl is a mean over the rows of a "
            f"batch, and the chat template of {model} drops earlier thoughts, which makes several "
            "rows of an episode. Set trainer.algorithm.kl=0, policy.thoughts=keep, "
            "trainer.aggregate=token, or `trainer` to local."
        )


def _roles(spec: JobSpec) -> None:
    """Raises UserError for a role that episodes ask at an address which every machine would take
    for its own."""
    roles = spec.settings.get("llm", {})
    for role in IN_EPISODES if spec.trainer.nnodes > 1 else ():
        if roles[role]["by"] != "endpoint":
            continue
        for url in roles[role]["base_url"] or ():
            host = urlsplit(url).hostname or ""
            if host == "localhost" or host == "::1" or host.startswith("127."):
                raise UserError(
                    f"trainer.nnodes={spec.trainer.nnodes}: the environments of each machine ask "
                    f"the {role} at {url}, which is the machine itself. Set llm.{role}.base_url or "
                    "llm.shared.base_url to an address that reaches the server from all."
                )


def _machines(settings: VerlSettings) -> None:
    if settings.ray_address is not None:
        _reachable(settings.ray_address)
    elif settings.nnodes > 1:
        raise UserError(
            f"trainer.nnodes={settings.nnodes} needs a running Ray cluster: start it with `ray "
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


CHECKS = (_packages, _compiler, _shape, _machines)  # checks that need the settings alone
