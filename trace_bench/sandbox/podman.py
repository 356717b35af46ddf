"""Containers by podman, without a daemon and, for a user other than root, without any right on the
machine: one `podman run` a worker. Isolation and limits are those of `docker.py`.

Without root the limits need cgroups of version 2, whose controllers the machine hands to its users;
what is missing is said at the start, and the worker limits itself (`rlimits`)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from trace_bench.core.errors import EngineError, UserError
from trace_bench.sandbox.engine import (
    FILES,
    IN_WORKER,
    LABEL,
    OWNER,
    Engine,
    Sandbox,
    answer,
    labels,
    left_behind,
    program,
    rlimits,
)
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.workers import ProcessTransport, Transport
from trace_bench.settings.schema import SandboxSettings

THREADS = 4096  # of the user 65534 in all containers, for which the engine's default is too many
CONTROLLERS = {
    "memory": "memory in total (each process has `sandbox.memory`)",
    "cpu": "CPU time (`sandbox.cpus` is not used)",
    "pids": "processes of a container (`sandbox.processes` counts those of all together)",
}


class Podman(Engine):
    contains = images = leaves = True

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        self._sandbox, self._image = sandbox, image
        self._podman = _podman(sandbox)
        host = json.loads(answer([self._podman, "info", "--format", "json"], sandbox))["host"]
        self._rootless = bool(host["security"]["rootless"])
        handed = set(host.get("cgroupControllers") or ())
        self._missing = [c for c in CONTROLLERS if self._rootless and c not in handed]
        self.unlimited = [CONTROLLERS[name] for name in self._missing]
        try:
            answer([self._podman, "image", "exists", image], sandbox)
        except EngineError as error:
            raise UserError(
                f"podman does not have the image {image}. Take it from a machine with Docker "
                f"(docker save {image} | podman load), or change `sandbox` or `env.image`. {error}"
            ) from error
        reap(self._podman, sandbox)

    def start(self, arguments: Mapping[str, Any]) -> Transport:
        given = {**arguments, "rlimits": rlimits(self._sandbox)} if self._missing else arguments
        name = f"trace-bench-{uuid4().hex}"
        marks = [f"--label={key}={value}" for key, value in labels(self._sandbox).items()]
        command = [self._podman, "run", f"--name={name}", *marks, *self._walls(), self._image]
        return PodmanTransport([*command, encode(given).decode().strip()], name, self._sandbox)

    def _walls(self) -> list[str]:
        """The container's isolation and limits, as arguments of `podman run`."""
        limits = self._sandbox
        cgroup = {
            "memory": [f"--memory={limits.memory}m", f"--memory-swap={limits.memory}m"],
            "cpu": [f"--cpus={limits.cpus}"],
            "pids": [f"--pids-limit={limits.processes}"],
        }
        used = [words for name, words in cgroup.items() if name not in self._missing]
        return [
            *("--rm", "--interactive", "--pull=never", "--network=none", "--http-proxy=false"),
            *("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--ipc=private"),
            f"--tmpfs=/tmp:rw,size={limits.scratch}m,mode=1777,nosuid,nodev,noexec",
            *("--security-opt=no-new-privileges", "--user=65534:65534", "--workdir=/tmp"),
            *("--shm-size=1m", f"--ulimit=nofile={FILES}:{FILES}", "--ulimit=core=0:0"),
            *([] if self._rootless else [f"--ulimit=nproc={THREADS}:{THREADS}"]),
            "--log-driver=none",  # too much output would fill the disk
            *(f"--env={key}={value}" for key, value in IN_WORKER.items()),
            *itertools.chain(*used),
        ]

    @classmethod
    def clean(cls, sandbox: SandboxSettings) -> None:
        reap(_podman(sandbox), sandbox)


class PodmanTransport(ProcessTransport):
    """A worker in a container, which outlives the program that shows it."""

    def __init__(self, command: Sequence[str], name: str, sandbox: Sandbox) -> None:
        self._remove = [command[0], "rm", "--force", "--time=0", "--ignore", name]
        self._seconds = sandbox.start
        # Its monitor leaves an empty file `oom` where it is started, of a worker out of memory.
        super().__init__(command, os.environ, hint="change `sandbox`", cwd=tempfile.gettempdir())

    def kill(self) -> None:
        """Removes the container too; one that is not removed now is by the next program."""
        super().kill()
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run(self._remove, capture_output=True, timeout=self._seconds, check=False)


def reap(podman: str, sandbox: SandboxSettings) -> None:
    """Removes containers of programs that have ended; never one of a program that may be running.
    Raises EngineError."""
    shown = answer([podman, "ps", "--all", f"--filter=label={LABEL}", "--format=json"], sandbox)
    for container in json.loads(shown or "[]"):
        whose = (container.get("Labels") or {}).get(OWNER, "")
        if left_behind(whose, container["State"]):
            # Another program may be removing it, or the next one will.
            with contextlib.suppress(EngineError):
                answer([podman, "rm", "--force", "--time=0", "--ignore", container["Id"]], sandbox)


def _podman(sandbox: SandboxSettings) -> str:
    return program("podman", "apt-get install podman, or the site's own package", sandbox)
