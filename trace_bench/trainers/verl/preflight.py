"""Checks before the first rollout, here, and on every machine of a Ray cluster before verl starts
there: the variables with keys (named, never read out), the servers that episodes ask, the folders
that all share. Nothing here imports verl, nor, before the job starts, what verl imports."""

from __future__ import annotations

import os
import shutil
import socket
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError
from trace_bench.llm.roles import IN_EPISODES
from trace_bench.trainers.settings import VerlSettings
from trace_bench.trainers.verl.process import check_settings
from trace_bench.trainers.verl.spec import JobSpec

VERL = "0.9.1"
TRANSFORMERS = ((5, 5, 3), (5, 11, 0))
VALUE_HEAD = "AutoModelForCausalLMWithValueHead"
_TRL_PPO = "experimental/ppo/__init__.py"
_INSTALL = "pip install '.[verl]'"

TOKEN = "HF_TOKEN"  # the hub's, which other machines must have themselves
_PATIENCE = 5.0  # seconds for a connection
_ANSWER = 120.0  # seconds for a machine
_JOINED = 120.0  # seconds until all have joined the cluster


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


def _packages(settings: VerlSettings) -> None:
    if (found := _version("verl")) is None:
        raise UserError(
            f"trainer=verl needs the package verl, which is not installed: {_INSTALL}, or set "
            "`trainer` to local."
        )
    if found != VERL:
        raise UserError(f"trainer=verl works with verl {VERL}; {found} is installed: {_INSTALL}.")
    transformers = metadata.version("transformers")
    numbers = tuple(int(n) for n in transformers.split(".")[:3] if n.isdigit())
    if not TRANSFORMERS[0] <= numbers < TRANSFORMERS[1]:
        low, high = (".".join(map(str, version)) for version in TRANSFORMERS)
        raise UserError(
            f"trainer=verl works with transformers from {low} to below {high}; {transformers} is "
            f"installed: {_INSTALL}."
        )
    if settings.flash_attention and settings.device == "cuda" and _version("flash_attn") is None:
        raise UserError(
            "trainer.flash_attention=true needs the package flash-attn, which is not installed: "
            "install a wheel of it for your torch and CUDA (without one, pip compiles it for an "
            "hour), or set trainer.flash_attention=false."
        )
    if settings.device == "cuda" and _version("vllm") is None:
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


def _trl(settings: VerlSettings) -> None:
    """Raises UserError for a trl without its class with a value head, which trl 1.16 has no more.
    Where a trl is installed, verl imports that class when it builds the model, which is minutes
    after the start."""
    if (spec := find_spec("trl")) is None:  # finds the package, and does not import it
        return
    homes = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [home / part for home in homes for part in ("__init__.py", _TRL_PPO)]
    if any(VALUE_HEAD in file.read_text(errors="replace") for file in files if file.is_file()):
        return
    found = _version("trl") or (f"in {homes[0]}" if homes else "without a version")
    raise UserError(
        f"trl {found} is installed, which has no {VALUE_HEAD}; verl {VERL} imports that if there "
        "is a trl, and fails. Nothing here needs trl: `pip uninstall trl`, or pip install "
        "'trl==0.27.0'."
    )


def _shape(settings: VerlSettings) -> None:
    """Raises UserError unless batches can be shared evenly."""
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
    if s.sequence_parallel > 1 and not (s.flash_attention and s.device == "cuda"):
        raise UserError(
            f"trainer.sequence_parallel={s.sequence_parallel} needs packed sequences: "
            "trainer.flash_attention=true with trainer.device=cuda. Set one or the other."
        )
    for name in ("sequence_parallel", "tensor_parallel"):
        if ranks % (size := getattr(s, name)):
            raise UserError(
                f"trainer.{name}={size} does not divide {ranks} GPUs (trainer.gpus x "
                "trainer.nnodes). Change one of them."
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


CHECKS = (_packages, _compiler, _trl, _shape, _machines)  # checks that need the settings alone


def asked(spec: JobSpec) -> list[Mapping[str, Any]]:
    """The settings of roles that episodes ask at servers."""
    roles = spec.settings.get("llm", {})
    return [roles[r] for r in IN_EPISODES if roles.get(r, {}).get("by") == "endpoint"]


def check_nodes(spec: JobSpec, folder: Path, variables: Mapping[str, str]) -> None:
    """Raises UserError that says what is missing on which machine of the cluster. `folder`: of the
    job."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    roles = asked(spec)
    names = sorted({role["key_env"] for role in roles if role.get("key_env")})
    if not Path(spec.agent.model).is_dir() and TOKEN in os.environ:
        names.append(TOKEN)
    urls = sorted({url for role in roles for url in role.get("base_url") or ()})
    own = [str(folder), *([spec.agent.model] if Path(spec.agent.model).is_dir() else [])]
    ray.init(
        address=spec.trainer.ray_address,
        runtime_env={"env_vars": dict(variables)},
        log_to_driver=False,
    )
    try:
        look = ray.remote(num_cpus=0)(missing)
        there = []
        alive = joined(ray.nodes, spec.trainer.nnodes)
        if len(alive) < spec.trainer.nnodes:
            raise UserError(
                f"{len(alive)} of trainer.nnodes={spec.trainer.nnodes} machines have joined the "
                f"cluster at {spec.trainer.ray_address}. Start the others, or lower trainer.nnodes."
            )
        for node in alive:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = look.options(scheduling_strategy=where).remote(names, urls, own)
            there.append((node["NodeManagerAddress"], answer))
        found = [(name, ray.get(answer, timeout=_ANSWER)) for name, answer in there]
    finally:
        ray.shutdown()
    if lacking := [f"machine {name}: {what}" for name, several in found for what in several]:
        raise UserError(
            f"{'; '.join(lacking)}. Set it there before `ray start`, start the server, or change "
            "llm.*.base_url, llm.*.key_env or run_dir."
        )


def joined(nodes: Callable[[], list[Any]], count: int, limit: float = _JOINED) -> list[Any]:
    """The machines that are there, after a wait for `count`: a batch job's start one by one."""
    end = time.monotonic() + limit
    while True:
        alive = [node for node in nodes() if node["Alive"]]
        if len(alive) >= count or time.monotonic() > end:
            return alive
        time.sleep(0.2)


def missing(names: Sequence[str], urls: Sequence[str], folders: Sequence[str]) -> list[str]:
    """What is not on this machine: variables, servers that answer, folders."""
    out = [
        f"the environment variable {name} is not set" for name in names if name not in os.environ
    ]
    for url in urls:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), _PATIENCE).close()
        except OSError as error:
            out.append(f"the server {url} does not answer ({error})")
    return out + [f"it does not see the folder {f}" for f in folders if not Path(f).is_dir()]
