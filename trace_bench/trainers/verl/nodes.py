"""What every machine of a Ray cluster must have before verl starts there: the variables with keys,
the servers that episodes ask, and the folders that all share. Variables are named, never read out.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trace_bench.llm.roles import IN_EPISODES
from trace_bench.trainers.verl.spec import JobSpec

HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE")
"""The hub's settings, which other machines are given as they are here; its token they must have."""
TOKEN = "HF_TOKEN"
_PATIENCE = 5.0  # seconds for a connection
_ANSWER = 120.0  # seconds for a machine
_JOINED = 120.0  # seconds until all have joined the cluster


def asked(spec: JobSpec) -> list[Mapping[str, Any]]:
    """The settings of roles that episodes ask at servers."""
    roles = spec.settings.get("llm", {})
    return [roles[r] for r in IN_EPISODES if roles.get(r, {}).get("by") == "endpoint"]


def hub_settings(model: str) -> dict[str, str]:
    """Those that are set here, for a model that is no folder."""
    names = () if Path(model).is_dir() else HUB
    return {name: os.environ[name] for name in names if name in os.environ}


def faults(spec: JobSpec, folder: Path, variables: Mapping[str, str]) -> list[str]:
    """What is missing on which machine of the cluster. `folder`: of the job."""
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
            return [
                f"{len(alive)} of trainer.nnodes={spec.trainer.nnodes} machines have joined the "
                f"cluster at {spec.trainer.ray_address}. Start the others, or lower trainer.nnodes"
            ]
        for node in alive:
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = look.options(scheduling_strategy=where).remote(names, urls, own)
            there.append((node["NodeManagerAddress"], answer))
        found = [(name, ray.get(answer, timeout=_ANSWER)) for name, answer in there]
    finally:
        ray.shutdown()
    lacking = [f"machine {name}: {what}" for name, several in found for what in several]
    if lacking:
        lacking[-1] += (
            ". Set it there before `ray start`, start the server, or change llm.*.base_url, "
            "llm.*.key_env or run_dir"
        )
    return lacking


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
