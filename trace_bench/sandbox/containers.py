"""Containers by a Docker engine, and by podman: without a daemon and, for a user other than root,
without any right on the machine.

Without root podman's limits need cgroups of version 2, whose controllers the machine hands to its
users; what is missing is said at the start, and the worker limits itself (`rlimits`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from trace_bench.core.errors import EngineError
from trace_bench.sandbox.engine import OF_RUNS, OWNER, Containers, Sandbox, answer, program, rlimits
from trace_bench.settings.schema import SandboxSettings

THREADS = 4096  # of the user 65534 in all containers, for which the engine's default is too many
CONTROLLERS = {
    "memory": "memory in total (each process has `sandbox.memory`)",
    "cpu": "CPU time (`sandbox.cpus` is not used)",
    "pids": "processes of a container (`sandbox.processes` counts those of all together)",
}


class Docker(Containers):
    @classmethod
    def connect(cls, sandbox: SandboxSettings) -> str:
        docker = program("docker", "apt-get install docker.io", sandbox)
        try:
            answer([docker, "version", "--format={{.Server.Version}}"], sandbox)
        except EngineError as error:
            if "permission denied" in str(error).lower():
                raise EngineError(
                    "the Docker engine's socket may not be opened by this user; add the user to "
                    "the group `docker` (and log in again), or change `sandbox` to process."
                ) from error
            address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
            raise EngineError(
                f"no Docker engine answers at {address}: start one (systemctl start docker, or "
                "dockerd), or set DOCKER_HOST to where one runs, or change `sandbox` to process. "
                f"The error: {error}"
            ) from error
        return docker

    @classmethod
    def without(cls, image: str) -> str:
        name = image.split("/")[-1].split(":")[0]
        return (
            f"the image {image} is missing. Build it with `python -m trace_bench.sandbox.build "
            f"{name}`, or change `sandbox` to process."
        )

    @classmethod
    def listed(cls, program: str, sandbox: SandboxSettings) -> Iterable[tuple[str, str, str]]:
        fields = '--format={{.ID}}\t{{.State}}\t{{.Label "' + OWNER + '"}}'
        for line in answer([program, *OF_RUNS, fields], sandbox).splitlines():
            container, state, owner = line.split("\t")
            yield container, state, owner


class Podman(Containers):
    remove = ("rm", "--force", "--time=0", "--ignore")

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        super().__init__(sandbox, image, python)
        host = json.loads(answer([self._program, "info", "--format", "json"], sandbox))["host"]
        self._rootless = bool(host["security"]["rootless"])
        handed = set(host.get("cgroupControllers") or ())
        self._missing = [c for c in CONTROLLERS if self._rootless and c not in handed]
        self.unlimited = [CONTROLLERS[name] for name in self._missing]

    @classmethod
    def connect(cls, sandbox: SandboxSettings) -> str:
        return program("podman", "apt-get install podman, or the site's own package", sandbox)

    @classmethod
    def without(cls, image: str) -> str:
        return (
            f"podman does not have the image {image}. Take it from a machine with Docker (docker "
            f"save {image} | podman load), or change `sandbox` or `env.image`."
        )

    @classmethod
    def listed(cls, program: str, sandbox: SandboxSettings) -> Iterable[tuple[str, str, str]]:
        containers = json.loads(answer([program, *OF_RUNS, "--format=json"], sandbox) or "[]")
        for container in containers:
            owner = (container.get("Labels") or {}).get(OWNER, "")
            yield container["Id"], container["State"], owner

    def of_worker(self) -> Mapping[str, Any]:
        return {"rlimits": rlimits(self._sandbox)} if self._missing else {}

    def walls(self) -> list[str]:
        threads = [] if self._rootless else [f"--ulimit=nproc={THREADS}:{THREADS}"]
        return [*super().walls(), "--rm", "--http-proxy=false", "--read-only-tmpfs=false", *threads]

    def cgroup(self) -> dict[str, list[str]]:
        return {k: words for k, words in super().cgroup().items() if k not in self._missing}
