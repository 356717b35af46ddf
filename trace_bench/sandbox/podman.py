"""Containers by podman, without a daemon and, for a user other than root, without any right on the
machine.

Without root the limits need cgroups of version 2, whose controllers the machine hands to its users;
what is missing is said at the start, and the worker limits itself (`rlimits`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from trace_bench.sandbox.engine import OF_RUNS, OWNER, Containers, Sandbox, answer, program, rlimits
from trace_bench.settings.schema import SandboxSettings

THREADS = 4096  # of the user 65534 in all containers, for which the engine's default is too many
CONTROLLERS = {
    "memory": "memory in total (each process has `sandbox.memory`)",
    "cpu": "CPU time (`sandbox.cpus` is not used)",
    "pids": "processes of a container (`sandbox.processes` counts those of all together)",
}


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
