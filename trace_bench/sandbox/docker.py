"""Containers as sandboxes: no network, no privileges, nothing writable but a small tmpfs."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trace_bench.core.errors import EngineError, UserError
from trace_bench.sandbox.engine import asked
from trace_bench.sandbox.transport import CHUNK, TAIL, Gone, ended, write_all


@dataclass(frozen=True)
class ContainerLimits:
    """The limits of one container. `memory` in MiB (without swap), `cpus` in cores, `scratch` in
    MiB of tmpfs (counts as memory), `files` open at once."""

    memory: int = 1024
    cpus: float = 1.0
    processes: int = 128
    scratch: int = 64
    files: int = 256


class DockerTransport:
    """A worker in a container; stdin, stdout and stderr over the engine's attach socket."""

    def __init__(
        self,
        client: Any,
        image: str,
        arguments: Sequence[str],
        labels: Mapping[str, str],
        limits: ContainerLimits,
    ) -> None:

        self._tail, self._raw, self._socket = b"", b"", None
        self._client = client
        try:
            with asked(client, f"create a container of {image}"):
                self._container = client.containers.create(
                    image, list(arguments), labels=dict(labels), **walls(limits)
                )
        except EngineError as error:
            raise _explained(error, image) from error
        try:
            with asked(client, f"start a container of {image}"):
                how = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
                self._keep = client.api.attach_socket(self._container.id, params=how)
                self._socket = getattr(self._keep, "_sock", self._keep)
                self._socket.setblocking(False)
                self._container.start()
        except EngineError:
            self.kill()
            raise

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
        how = None
        with contextlib.suppress(EngineError), asked(self._client, "describe a container"):
            self._container.reload()
            state = self._container.attrs["State"]
            if not state["Running"]:
                how = f"exit code {state['ExitCode']}"
            if state.get("OOMKilled"):
                how = "out of memory"
        return ended(how, self._tail)

    def kill(self) -> None:
        """Removes the container, even if it is running. Closes the channel first: the engine does
        not remove a container whose output is not read. One that it does not remove now is removed
        by the next program."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                self._socket.close()
                self._keep.close()
            self._socket = None
        with contextlib.suppress(EngineError), asked(self._client, "remove a container"):
            self._container.remove(force=True, v=True)


def walls(limits: ContainerLimits) -> dict[str, Any]:
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
        "ulimits": [
            ulimit(name="nofile", soft=limits.files, hard=limits.files),
            ulimit(name="core", soft=0, hard=0),
        ],
        # The engine stores no container output: too much of it would fill the disk.
        "log_config": docker.types.LogConfig(type="none"),
    }


def check_image(client: Any, image: str) -> None:
    """Raises UserError if the engine does not have the image, EngineError if it does not say."""
    try:
        with asked(client, f"look for the image {image}"):
            client.images.get(image)
    except EngineError as error:
        raise _explained(error, image) from error


def _explained(error: EngineError, image: str) -> UserError:
    """The error, or that the image is missing, if that is its cause."""
    import docker

    if not isinstance(error.__cause__, docker.errors.ImageNotFound):
        return error
    name = image.split("/")[-1].split(":")[0]
    return UserError(
        f"the image {image} is missing. Build it with `python -m trace_bench.sandbox.build "
        f"{name}`, or change `sandbox` to process."
    )
