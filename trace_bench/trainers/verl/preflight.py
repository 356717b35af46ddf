"""What must be there before the first rollout: packages, GPUs or a cluster, and settings that verl
takes. Nothing here imports verl."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError
from trace_bench.llm.roles import IN_EPISODES
from trace_bench.trainers.verl.process import check_settings
from trace_bench.trainers.verl.settings import VerlSettings
from trace_bench.trainers.verl.spec import JobSpec

T = TypeVar("T")
VERL = "0.9.1"
TRANSFORMERS = ("5.5.3", "5.11.0")  # the first that it works with, the first that it does not
_INSTALL = "pip install '.[verl]'"
_PATIENCE = 5.0  # seconds for a connection


def preflight(spec: JobSpec, *, whole: bool = True) -> None:
    """Raises UserError that says what to change; cheap checks first. `spec`: any job of the run;
    `whole`: also let verl check its settings, which takes as long as importing it."""
    for check in CHECKS:
        check(spec.trainer)
    for check_job in OF_JOB:
        check_job(spec)
    from trace_bench.trainers.adapters import fresh

    fresh(spec.agent.model, spec.trainer.target_modules, spec.trainer.rank, 0)
    if whole:
        with tempfile.TemporaryDirectory(prefix="trace_bench-") as folder:
            check_settings(spec, Path(folder))


def _packages(settings: VerlSettings) -> None:
    verl, transformers, (low, high) = _version("verl"), _version("transformers"), TRANSFORMERS
    if verl != VERL:
        there = "it is not installed" if verl is None else f"{verl} is installed"
        raise UserError(
            f"trainer=verl needs the package verl {VERL}, and {there}: {_INSTALL}, or set "
            "`trainer` to local."
        )
    if not _numbers(low) <= _numbers(transformers or "0") < _numbers(high):
        raise UserError(
            f"trainer=verl works with transformers from {low} to below {high}; {transformers} is "
            f"installed: {_INSTALL}."
        )
    if settings.device == "cuda" and _version("vllm") is None:
        raise UserError(
            "trainer.device=cuda samples with vLLM, which is not installed: pip install "
            "'verl[vllm]', or set trainer.device=cpu."
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split(".")[:3] if n.isdigit())


def _cluster(settings: VerlSettings) -> None:
    """Raises UserError unless there are as many GPUs here, or a cluster answers."""
    if (address := settings.ray_address) is not None:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if not colon or not port.isdigit():
            raise UserError(
                f"trainer.ray_address={address!r} is not an address; allowed: host:port, such as "
                "10.0.0.1:6379. Change `trainer.ray_address`."
            )
        if why := _unreachable(host, int(port)):
            raise UserError(
                f"no Ray cluster answers at trainer.ray_address={address} ({why}). Start it with "
                "`ray start --head`, change the address, or set it to null to start Ray here."
            )
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


def _unreachable(host: str, port: int) -> str:
    """Why nothing answers there; "" if something does."""
    try:
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        return str(error)
    return ""


CHECKS = (_packages, _cluster)  # those that need the settings alone


def _divergence(spec: JobSpec) -> None:
    """Raises UserError where verl would weigh the divergence from the base model by rows, of which
    an episode has several."""
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
    """Raises UserError for a role that episodes ask at an address which every machine would take
    for its own."""
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


OF_JOB = (_divergence, _roles)


def refused(checks: Sequence[Callable[[T], None]], of: T) -> list[str]:
    """What each of the checks says that refuses it."""
    out = []
    for check in checks:
        try:
            check(of)
        except UserError as error:
            out.append(str(error))
    return out
