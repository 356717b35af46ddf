"""Containers as sandboxes: no network, nothing writable but a small tmpfs, no privileges, limits.

Containers have the label `trace_bench=<run>` and, in `trace_bench.host`, the process that owns
them; the next program removes containers that a killed program left behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.sandbox.transport import CHUNK, TAIL, Gone, ended, write_all

LABEL, OWNER = "trace_bench", "trace_bench.host"
_SECONDS = 60  # timeout of one request to the engine


@dataclass(frozen=True)
class Limits:
    """The limits of one container. `memory` in MiB (without swap), `cpus` in cores, `scratch` in
    MiB of tmpfs (counts as memory), `files` open at once."""

    memory: int = 1024
    cpus: float = 1.0
    processes: int = 128
    scratch: int = 64
    files: int = 256


class DockerTransport:
    """A worker in a container; stdin, stdout and stderr over the engine's attach socket."""

    def __init__(self, client: Any, image: str, arguments: Sequence[str], run: str, limits: Limits):
        import docker

        self._tail, self._raw, self._socket = b"", b"", None
        self._client = client
        try:
            self._container = client.containers.create(
                image, list(arguments), labels={LABEL: run, OWNER: owner()}, **walls(limits)
            )
        except docker.errors.ImageNotFound as error:
            raise _missing(image) from error
        except docker.errors.APIError as error:
            raise UserError(f"the engine made no container of {image}: {error}") from error
        try:
            how = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            self._keep = client.api.attach_socket(self._container.id, params=how)
            self._socket = getattr(self._keep, "_sock", self._keep)
            self._socket.setblocking(False)
            self._container.start()
        except docker.errors.APIError as error:
            self.kill()
            raise UserError(f"the container of {image} did not start: {error}") from error

    def filenos(self) -> Sequence[int]:
        return [self._socket.fileno()] if self._socket is not None else []

    def read(self) -> bytes:
        """The bytes that have arrived on stdout. The socket carries frames: one byte for the
        stream, three unused, four for the length, then the data."""
        if self._socket is None:
            raise Gone
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Gone(str(error)) from error
        if not data:
            raise Gone
        self._raw += data
        out = []
        while len(self._raw) >= 8:
            stream, length = struct.unpack(">B3xI", self._raw[:8])
            if len(self._raw) < 8 + length:
                break
            frame, self._raw = self._raw[8 : 8 + length], self._raw[8 + length :]
            if stream == 1:
                out.append(frame)
            else:
                self._tail = (self._tail + frame)[-TAIL:]
        return b"".join(out)

    def write(self, data: bytes, deadline: float) -> None:
        if self._socket is None:
            raise Gone
        write_all(self._socket.send, self._socket, data, deadline)

    def epitaph(self) -> str:
        import docker

        how = None
        with contextlib.suppress(docker.errors.APIError):
            self._container.reload()
            state = self._container.attrs["State"]
            if not state["Running"]:
                how = f"exit code {state['ExitCode']}"
            if state.get("OOMKilled"):
                how = "out of memory"
        return ended(how, self._tail)

    def kill(self) -> None:
        """Removes the container, even if it is running. Closes the channel first: the engine does
        not remove a container whose output is not read."""
        import docker

        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                self._socket.close()
                self._keep.close()
            self._socket = None
        with contextlib.suppress(docker.errors.APIError):
            self._container.remove(force=True, v=True)


def walls(limits: Limits) -> dict[str, Any]:
    """The container's isolation and limits, as arguments of the Docker SDK."""
    import docker

    ulimit = docker.types.Ulimit
    return {
        "stdin_open": True,
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {"/tmp": f"size={limits.scratch}m,mode=1777,nosuid,nodev,noexec"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "user": "65534:65534",
        "working_dir": "/tmp",
        "environment": {"HOME": "/tmp", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        "mem_limit": f"{limits.memory}m",
        "memswap_limit": f"{limits.memory}m",
        "pids_limit": limits.processes,
        "nano_cpus": int(limits.cpus * 1e9),
        "shm_size": "1m",
        "ipc_mode": "private",
        "init": True,
        "ulimits": [
            ulimit(name="nofile", soft=limits.files, hard=limits.files),
            ulimit(name="core", soft=0, hard=0),
        ],
        # The engine stores no container output: too much of it would fill the disk.
        "log_config": docker.types.LogConfig(type="none"),
    }


def check_image(client: Any, image: str) -> None:
    """Raises UserError if the engine does not have the image."""
    import docker

    try:
        client.images.get(image)
    except docker.errors.ImageNotFound as error:
        raise _missing(image) from error
    except docker.errors.APIError as error:  # such as a name that no image can have
        raise UserError(f"the engine does not know the image {image}: {error}") from error


def _missing(image: str) -> UserError:
    name = image.split("/")[-1].split(":")[0]
    return UserError(
        f"the image {image} is missing. Build it with `python -m "
        f"trace_bench.sandbox.build {name}`, or change `sandbox` to process."
    )


def connect() -> Any:
    """A client of a running engine. Raises UserError that says what is missing and what to do."""
    try:
        import docker
    except ImportError as error:
        raise UserError(
            "sandbox=docker needs the package `docker`: pip install '.[docker]', or change "
            "`sandbox`."
        ) from error
    try:
        client = docker.from_env(timeout=_SECONDS)
        client.ping()
    except docker.errors.DockerException as error:
        text = str(error)
        if "Permission denied" in text or "PermissionError" in text:
            raise UserError(
                "the Docker engine's socket may not be opened by this user; add the user to the "
                "group `docker` (and log in again), or change `sandbox` to process."
            ) from error
        raise UserError(
            "no Docker engine answers: install one (apt-get install docker.io) and start it "
            "(systemctl start docker, or dockerd), or set DOCKER_HOST to where one runs, or "
            f"change `sandbox` to process. The error: {text}"
        ) from error
    return client


def reap(client: Any, run: str) -> int:
    """Removes containers of this run from earlier programs, and of any run from ended programs on
    this machine; keeps those of this process. Returns how many were removed."""
    import docker

    count, me = 0, owner()
    for container in client.containers.list(all=True, filters={"label": LABEL}):
        whose = container.labels.get(OWNER, "")
        if whose != me and (container.labels[LABEL] == run or not _alive(whose)):
            with contextlib.suppress(docker.errors.APIError):
                container.remove(force=True, v=True)
                count += 1
    return count


def owner() -> str:
    """Identifies this process, so that others can check whether it still runs: boot id, pid, start
    time."""
    return f"{_boot()} {os.getpid()} {_started(os.getpid())}"


def _alive(text: str) -> bool:
    """Whether the owner still runs. An owner on another machine, or from before a reboot, cannot be
    checked and counts as alive."""
    parts = text.split()
    if len(parts) != 3:
        return False
    boot, pid, started = parts
    return boot != _boot() or _started(int(pid)) == started


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else socket.gethostname()


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "gone"
