"""What runs workers: a class for each choice of the setting `sandbox`, which says what it can do.

An engine is little more than a command line, a list of limits and a way to end what it started: a
worker speaks JSON lines over stdin and stdout wherever it runs.

Docker and podman share the command line of containers: one `run` a worker, with no network, no
privileges, and nothing writable but a small tmpfs. A container outlives the program that shows it,
so it is removed by name at the worker's end, and those of programs that have ended by the next
program that uses the engine. Podman needs no daemon and, for a user other than root, no right on
the machine; without root its limits need cgroups of version 2, whose controllers the machine hands
to its users. What is missing is said at the start, and the worker limits itself (`rlimits`).

Containers carry three labels: `trace_bench`, the run's fingerprint; `trace_bench.folder`, its
folder, since runs with the same settings have the same fingerprint; and `trace_bench.host`, the
process that owns them, by which the next program knows those that a killed program left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from trace_bench.core.errors import EngineError, UserError
from trace_bench.core.store import process, running
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.workers import Worker
from trace_bench.settings.schema import SandboxSettings

LABEL, FOLDER, OWNER = "trace_bench", "trace_bench.folder", "trace_bench.host"
_PROC = Path("/proc")
FILES = 256  # open at once in a sandbox
SCRATCH = 64  # MiB of /tmp
IN_WORKER = {"HOME": "/tmp", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
COMMAND = ("python3", "-m", "trace_bench.sandbox.worker")
"""What an image starts."""


@dataclass(frozen=True)
class Sandbox(SandboxSettings):
    """With the run that owns the containers: its fingerprint and its folder."""

    run: str = "unnamed"
    folder: str = ""


class Engine(ABC):
    """A kind of sandbox. `image`: what its workers run in; `python`: the interpreter of a worker
    that shares this machine's files. Making one raises UserError if it cannot be used here."""

    contains: ClassVar[bool] = False
    """It keeps in code of others."""
    images: ClassVar[bool] = False
    """Workers run in an image, or in a folder made of one."""
    leaves: ClassVar[bool] = False
    """A program that is killed may leave something behind, which `clean` removes."""
    here: ClassVar[bool] = False
    """Suites run in this process; `start` is for programs of others."""
    unlimited: Sequence[str] = ()
    """What it cannot limit on this machine, in words."""

    @abstractmethod
    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None: ...

    @abstractmethod
    def start(self, arguments: Mapping[str, Any]) -> Worker:
        """A new worker with these start arguments (worker.py)."""

    @classmethod  # noqa: B027 (most have nothing to remove)
    def clean(cls, sandbox: SandboxSettings) -> None:
        """Removes what ended programs left behind. Raises UserError without an engine."""


def rlimits(sandbox: SandboxSettings) -> dict[str, int]:
    """Limits that a worker sets for itself, for an engine that has none; `resource.RLIMIT_*` by
    name. Linux counts DATA and FSIZE for each process, NPROC for the worker's user namespace."""
    size = sandbox.memory * 2**20
    return {"NOFILE": FILES, "CORE": 0, "NPROC": sandbox.processes, "DATA": size, "FSIZE": size}


def program(name: str, package: str, sandbox: SandboxSettings) -> str:
    """The path of a program. Raises EngineError if it is not installed."""
    if (path := shutil.which(name)) is None:
        raise EngineError(
            f"sandbox={sandbox.name} needs the program `{name}` in PATH ({package}), or change "
            "`sandbox`."
        )
    return path


def answer(command: Sequence[str], sandbox: SandboxSettings, **how: Any) -> str:
    """What a program says. EngineError if it fails or takes longer than `sandbox.start`."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=sandbox.start, check=True, **how
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {sandbox.start:g} s (`sandbox.start`)"
    except subprocess.CalledProcessError as error:
        why = f"exit code {error.returncode}: {' '.join(error.stderr.split())[-300:]}"
    except OSError as error:
        why = str(error)
    else:
        return done.stdout
    raise EngineError(
        f"`{' '.join(map(str, command[:4]))} ...` failed: {why}. Change `sandbox` if this machine "
        f"does not allow sandbox={sandbox.name}."
    )


# -- containers -----------------------------------------------------------------------------------

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

    def start(self, arguments: Mapping[str, Any]) -> Worker:
        name = f"trace-bench-{uuid4().hex}"
        marks = [f"--label={key}={value}" for key, value in labels(self._sandbox).items()]
        command = [self._program, "run", f"--name={name}", *marks, *self.walls(), self._image]
        remove = [self._program, *self.remove, name]
        worker = encode({**arguments, **self.of_worker()}).decode().strip()
        return ContainerWorker([*command, worker], remove, self._sandbox)

    def of_worker(self) -> Mapping[str, Any]:
        """More start arguments of the worker."""
        return {}

    def walls(self) -> list[str]:
        """The container's isolation and limits, as arguments of `run`."""
        return [
            *("--interactive", "--pull=never", "--network=none", "--read-only"),
            *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--ipc=private"),
            f"--tmpfs=/tmp:rw,size={SCRATCH}m,mode=1777,nosuid,nodev,noexec",
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


class ContainerWorker(Worker):
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


# -- whose containers -----------------------------------------------------------------------------


def labels(sandbox: Sandbox) -> dict[str, str]:
    return {LABEL: sandbox.run, FOLDER: sandbox.folder, OWNER: owner()}


def left_behind(whose: str, state: str) -> bool:
    """Whether the owner of a container in this state has ended. One that cannot be checked from
    here (of another machine, boot or process namespace) may be running as long as the container
    does, since a worker ends with its host (worker.py)."""
    *place, pid, started = whose.split() if len(whose.split()) == 4 else ("", "", "", "")
    if place != _here() or not pid.isdecimal():
        return state in ("exited", "dead")
    return _started(int(pid)) != started


def owner() -> str:
    """This process, so that others can check it: boot, process namespace, pid, start time."""
    return " ".join([*_here(), str(os.getpid()), _started(os.getpid())])


def _here() -> list[str]:
    """Where a pid means what it means here."""
    boot, space = _PROC / "sys/kernel/random/boot_id", _PROC / "self/ns/pid"
    if not boot.exists():
        return [socket.gethostname(), "-"]
    return [boot.read_text().strip(), str(space.readlink())]


def _started(pid: int) -> str:
    """When the process began, in ticks since the boot (`there` without /proc); `gone` if ended."""
    if not running(pid):
        return "gone"
    fields = process(pid)
    return fields[19] if fields else "there"


# -- Docker and podman ----------------------------------------------------------------------------

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
