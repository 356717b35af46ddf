"""Containers as sandboxes, by the command line that Docker and podman share: one `run` a worker,
with no network, no privileges, and nothing writable but a small tmpfs.

A container outlives the program that shows it, so it is removed by name at the worker's end, and
those of programs that have ended by the next program that uses the engine.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar
from uuid import uuid4

from trace_bench.core.errors import EngineError, UserError
from trace_bench.sandbox.engine import (
    FILES,
    IN_WORKER,
    LABEL,
    Engine,
    Sandbox,
    answer,
    labels,
    left_behind,
)
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.workers import ProcessTransport, Transport
from trace_bench.settings.schema import SandboxSettings

OF_RUNS = ("ps", "--all", "--no-trunc", f"--filter=label={LABEL}")


class Containers(Engine):
    """An engine of containers. `remove`: the arguments that remove one, before its name."""

    contains = images = leaves = True
    remove: ClassVar[Sequence[str]] = ("rm", "--force")

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        self._program = self.connect(sandbox)
        self._sandbox, self._image = sandbox, image
        try:
            answer([self._program, "image", "inspect", "--format={{.Id}}", image], sandbox)
        except EngineError as error:
            if re.search("no such|not known", str(error), re.IGNORECASE):
                raise UserError(self.without(image)) from error
            raise
        self._reap(self._program, sandbox)

    @classmethod
    @abstractmethod
    def connect(cls, sandbox: SandboxSettings) -> str:
        """The path of the engine's program. Raises EngineError if no engine answers."""

    @classmethod
    @abstractmethod
    def without(cls, image: str) -> str:
        """What to do where the engine does not have the image."""

    @classmethod
    @abstractmethod
    def listed(cls, program: str, sandbox: SandboxSettings) -> Iterable[tuple[str, str, str]]:
        """(id, state, owner) of each container of any run. Raises EngineError."""

    def start(self, arguments: Mapping[str, Any]) -> Transport:
        name = f"trace-bench-{uuid4().hex}"
        marks = [f"--label={key}={value}" for key, value in labels(self._sandbox).items()]
        command = [self._program, "run", f"--name={name}", *marks, *self.walls(), self._image]
        remove = [self._program, *self.remove, name]
        worker = encode({**arguments, **self.of_worker()}).decode().strip()
        return ContainerTransport([*command, worker], remove, self._sandbox)

    def of_worker(self) -> Mapping[str, Any]:
        """More start arguments of the worker."""
        return {}

    def walls(self) -> list[str]:
        """The container's isolation and limits, as arguments of `run`."""
        limits = self._sandbox
        return [
            *("--interactive", "--pull=never", "--network=none", "--read-only"),
            *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--ipc=private"),
            f"--tmpfs=/tmp:rw,size={limits.scratch}m,mode=1777,nosuid,nodev,noexec",
            *("--user=65534:65534", "--workdir=/tmp", "--shm-size=1m"),
            *(f"--ulimit=nofile={FILES}:{FILES}", "--ulimit=core=0:0"),
            "--log-driver=none",  # too much output would fill the disk
            *(f"--env={key}={value}" for key, value in IN_WORKER.items()),
            *(word for words in self.cgroup().values() for word in words),
        ]

    def cgroup(self) -> dict[str, list[str]]:
        """The arguments that a controller of the container's cgroup needs, by its name."""
        limits = self._sandbox
        return {
            "memory": [f"--memory={limits.memory}m", f"--memory-swap={limits.memory}m"],
            "cpu": [f"--cpus={limits.cpus}"],
            "pids": [f"--pids-limit={limits.processes}"],
        }

    @classmethod
    def clean(cls, sandbox: SandboxSettings) -> None:
        cls._reap(cls.connect(sandbox), sandbox)

    @classmethod
    def _reap(cls, program: str, sandbox: SandboxSettings) -> None:
        """Removes containers of programs that have ended; none of one that may be running."""
        for container, state, owner in cls.listed(program, sandbox):
            if left_behind(owner, state):
                # Another program may be removing it, or the next one will.
                with contextlib.suppress(EngineError):
                    answer([program, *cls.remove, container], sandbox)


class ContainerTransport(ProcessTransport):
    """A worker in a container. `remove`: the command that removes it."""

    def __init__(self, command: Sequence[str], remove: Sequence[str], sandbox: Sandbox) -> None:
        self._remove, self._seconds = remove, sandbox.start
        # podman leaves an empty file `oom` where it is started, of a worker out of memory.
        super().__init__(command, os.environ, hint="change `sandbox`", cwd=tempfile.gettempdir())

    def kill(self) -> None:
        """Removes the container too; one that is not removed now is by the next program."""
        super().kill()
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run(self._remove, capture_output=True, timeout=self._seconds, check=False)
