"""What must be there before the first rollout: packages, a compiler, GPUs or a cluster, and on each
of its machines keys (named, never read out), servers and folders. Nothing here imports verl, nor,
before the job starts, what verl imports."""

from __future__ import annotations

import os
import shutil
import socket
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError
from trace_bench.llm.roles import IN_EPISODES
from trace_bench.trainers.verl.process import check_settings
from trace_bench.trainers.verl.settings import VerlSettings
from trace_bench.trainers.verl.spec import JobSpec

T = TypeVar("T")
VERL = "0.9.1"
TRANSFORMERS = ("5.5.3", "5.11.0")  # the first that it works with, the first that it does not
TOKEN = "HF_TOKEN"  # the hub's, which other machines must have themselves
_INSTALL = "pip install '.[verl]'"
_PATIENCE = 5.0  # seconds for a connection
_ANSWER = 300.0  # seconds for a machine, whose first process imports for a while
_JOINED = 120.0  # seconds until all have joined the cluster


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


CHECKS = (_packages, _compiler, _cluster)  # those that need the settings alone


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
    for role, settings in asked(spec).items() if spec.trainer.nnodes > 1 else ():
        for url in settings.get("base_url") or ():
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


def asked(spec: JobSpec) -> dict[str, Mapping[str, Any]]:
    """The settings of the roles that episodes ask at servers."""
    roles = spec.settings.get("llm", {})
    return {r: roles[r] for r in IN_EPISODES if roles.get(r, {}).get("by") == "endpoint"}


def check_machines(spec: JobSpec, folder: Path, variables: Mapping[str, str]) -> None:
    """Looks at each machine of the cluster, in verl's process before verl. Raises UserError that
    says what is missing on which. `folder`: of the job; `variables`: of its processes."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    roles, model = asked(spec).values(), spec.agent.model
    names = {role["key_env"] for role in roles if role.get("key_env")}
    if not Path(model).is_dir() and TOKEN in os.environ:
        names.add(TOKEN)
    urls = {url for role in roles for url in role.get("base_url") or ()}
    folders = [str(folder), *([model] if Path(model).is_dir() else [])]
    ray.init(
        address=spec.trainer.ray_address,
        runtime_env={"env_vars": dict(variables)},
        log_to_driver=False,
    )

    def answer(waiting: Any) -> list[str]:
        try:
            return list(ray.get(waiting, timeout=_ANSWER))
        except ray.exceptions.RayError as error:  # it is gone, or too slow
            return [f"it gives no answer within {_ANSWER:g} s ({type(error).__name__})"]

    try:
        alive, look = joined(ray.nodes, spec.trainer), ray.remote(num_cpus=0)(missing)
        waiting = []
        for node in alive:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            on_it = look.options(scheduling_strategy=where)
            waiting.append(on_it.remote(sorted(names), sorted(urls), folders))
        addresses = [node["NodeManagerAddress"] for node in alive]
        refuse(addresses, [answer(each) for each in waiting])
    finally:
        ray.shutdown()


def joined(
    nodes: Callable[[], list[Any]], settings: VerlSettings, limit: float = _JOINED
) -> list[Any]:
    """The machines that are there; a batch job's start one by one. Raises UserError where they are
    too few for longer than `limit` seconds."""
    end = time.monotonic() + limit
    while len(alive := [node for node in nodes() if node["Alive"]]) < settings.nnodes:
        if time.monotonic() > end:
            raise UserError(
                f"{len(alive)} of trainer.nnodes={settings.nnodes} machines have joined the "
                f"cluster at {settings.ray_address}. Start the others, or lower trainer.nnodes."
            )
        time.sleep(0.2)
    return alive


def missing(names: Sequence[str], urls: Sequence[str], folders: Sequence[str]) -> list[str]:
    """What is not on this machine: variables, servers that answer, folders."""
    out = [f"the environment variable {n} is not set" for n in names if n not in os.environ]
    for url in urls:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if why := _unreachable(parts.hostname or "", port):
            out.append(f"the server {url} does not answer ({why})")
    return out + [f"it does not see the folder {f}" for f in folders if not Path(f).is_dir()]


def refuse(machines: Sequence[str], lacking: Sequence[Sequence[str]]) -> None:
    """Raises UserError if any of these machines lacks something."""
    pairs = zip(machines, lacking, strict=True)
    if said := [f"machine {name}: {what}" for name, each in pairs for what in each]:
        raise UserError(
            f"{'; '.join(said)}. Set it there before `ray start`, start the server, or change "
            "llm.*.base_url, llm.*.key_env or run_dir."
        )
