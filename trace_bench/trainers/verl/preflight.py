"""What must be there before the first rollout: packages, a compiler, GPUs or a cluster, and
settings that verl takes. Nothing here imports verl."""

from __future__ import annotations

import os
import shutil
import socket
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError, not_allowed
from trace_bench.core.types import IN_EPISODES
from trace_bench.trainers.verl.process import check_settings
from trace_bench.trainers.verl.spec import JobSpec

VERL = "0.9.1"
TRANSFORMERS = "5.11"  # the first that this verl does not work with, as in the extra `verl`
_PATIENCE = 5.0  # seconds for a connection


def preflight(spec: JobSpec, *, whole: bool = True) -> None:
    """Raises UserError that says what to change; cheap checks first. `spec`: any job of the run;
    `whole`: also let verl check its settings, which takes as long as importing it."""
    for check in CHECKS:
        check(spec)
    from trace_bench.trainers.adapters import fresh

    fresh(spec.agent.model, spec.trainer.target_modules, spec.trainer.rank, 0)
    if whole:
        with tempfile.TemporaryDirectory(prefix="trace_bench-") as folder:
            check_settings(spec, Path(folder))


def _packages(spec: JobSpec) -> None:
    if (there := _version("verl")) != VERL:
        raise UserError(
            f"trainer=verl needs the package verl {VERL}, and {there or 'none'} is installed: "
            "pip install '.[verl]', or set `trainer` to local."
        )
    transformers = _version("transformers") or "0"
    if _numbers(transformers) >= _numbers(TRANSFORMERS):
        raise UserError(
            f"trainer=verl works with transformers below {TRANSFORMERS}, and {transformers} is "
            "installed: pip install '.[verl]', or set `trainer` to local."
        )
    if spec.trainer.device == "cuda" and _version("vllm") is None:
        raise UserError(
            "trainer.device=cuda samples with vLLM, which is not installed: pip install "
            "'verl[vllm]', or set trainer.device=cpu."
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    """Major and minor."""
    return [int(n) for n in version.split(".")[:2]]


def _compiler(spec: JobSpec) -> None:
    """Raises UserError where Triton, whose kernels vLLM runs, cannot compile: it does so at run
    time, with a C compiler and Python's headers (triton/runtime/build.py)."""
    settings = spec.trainer
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


def _cluster(spec: JobSpec) -> None:
    """Raises UserError unless there are as many GPUs here, or a cluster answers."""
    settings = spec.trainer
    if (address := settings.ray_address) is not None:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not colon or not port.isdigit():
            raise not_allowed("trainer.ray_address", address, "host:port, such as 10.0.0.1:6379")
        try:
            socket.create_connection((host, int(port)), _PATIENCE).close()
        except OSError as error:
            raise UserError(
                f"no Ray cluster answers at trainer.ray_address={address} ({error}). Start it with "
                "`ray start --head`, change the address, or set it to null to start Ray here."
            ) from error
    elif settings.nnodes > 1:
        raise UserError(
            f"trainer.nnodes={settings.nnodes} needs a running Ray cluster: start it with `ray "
            "start` on each machine and set trainer.ray_address to its head's host:port."
        )
    elif settings.device == "cuda":
        import torch

        if (count := torch.cuda.device_count()) < settings.gpus:
            raise UserError(
                f"trainer.gpus={settings.gpus}, and this machine has {count}. Lower trainer.gpus, "
                "set trainer.ray_address to a cluster, or trainer.device=cpu."
            )


def _divergence(spec: JobSpec) -> None:
    """UserError where verl would weigh the divergence by rows, of which an episode has several."""
    from trace_bench.policies.chat import Chat
    from trace_bench.policies.loading import load_tokenizer

    algorithm, model = spec.trainer.algorithm, spec.agent.model
    by_rows = algorithm.kl > 0 and algorithm.aggregation()[0] != "token"
    if not by_rows or spec.thoughts == "keep":
        return
    if Chat(load_tokenizer(model), model, spec.thinking).drops:
        raise UserError(
            f"trainer.algorithm.kl={algorithm.kl:g} with trainer=verl is a mean over the rows of a "
            f"batch, and the chat template of {model} drops earlier thoughts, which makes several "
            "rows of an episode. Set trainer.algorithm.kl=0, policy.thoughts=keep, "
            "or `trainer` to local."
        )


def _roles(spec: JobSpec) -> None:
    """UserError for a role at an address that every machine would take for its own."""
    roles = {role: spec.settings.get("llm", {}).get(role, {}) for role in IN_EPISODES}
    for role, settings in roles.items() if spec.trainer.nnodes > 1 else ():
        for url in settings.get("base_url") or () if settings.get("by") == "endpoint" else ():
            host = urlsplit(url).hostname or ""
            if host in ("localhost", "::1") or host.startswith("127."):
                raise UserError(
                    f"trainer.nnodes={spec.trainer.nnodes}: the environments of each machine ask "
                    f"the {role} at {url}, which is the machine itself. Set llm.{role}.base_url or "
                    "llm.shared.base_url to an address that reaches the server from all."
                )


CHECKS = (_packages, _compiler, _cluster, _divergence, _roles)


def refusals(spec: JobSpec) -> list[str]:
    """What each of the checks says that refuses the job."""
    out = []
    for check in CHECKS:
        try:
            check(spec)
        except UserError as error:
            out.append(str(error))
    return out
