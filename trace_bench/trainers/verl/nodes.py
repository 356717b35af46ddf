"""What each machine of a Ray cluster must have, looked at there before verl starts: the variables
with keys (named, never read out), the servers that episodes ask, the folders that all share."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError
from trace_bench.llm.roles import IN_EPISODES
from trace_bench.trainers.verl.spec import JobSpec

TOKEN = "HF_TOKEN"  # the hub's, which other machines must have themselves
_PATIENCE = 5.0  # seconds for a connection
_ANSWER = 300.0  # seconds for a machine, whose first process imports for a while
_JOINED = 120.0  # seconds until all have joined the cluster


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
    folders = [str(folder), *([spec.agent.model] if Path(spec.agent.model).is_dir() else [])]
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
            answer = look.options(scheduling_strategy=where).remote(names, urls, folders)
            there.append((node["NodeManagerAddress"], answer))
        answers = [(name, ray.get(answer, timeout=_ANSWER)) for name, answer in there]
    finally:
        ray.shutdown()
    if lacking := [f"machine {name}: {what}" for name, several in answers for what in several]:
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
