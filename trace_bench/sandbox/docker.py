"""Containers as sandboxes: no network, no privileges, nothing writable but a small tmpfs; and the
engine: a connection with time limits, its errors, and what ended programs left in it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trace_bench.core.errors import EngineError, UserError
from trace_bench.sandbox.engine import (
    FILES,
    IN_WORKER,
    LABEL,
    OWNER,
    Engine,
    Sandbox,
    labels,
    left_behind,
)
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.workers import CHUNK, TAIL, Gone, Transport, ended, write_all
from trace_bench.settings.schema import SandboxSettings

SECONDS = 60.0  # for one request to the engine; sandbox.start in a run


def connect(seconds: float = SECONDS) -> Any:
    """A client of a running engine. `seconds`: the limit of every request. Raises UserError."""
    try:
        import docker
    except ImportError as error:
        raise UserError(
            "sandbox=docker needs the package `docker`: pip install '.[docker]', or change "
            "`sandbox`."
        ) from error
    try:
        client = docker.from_env(timeout=seconds)
        # The client's own limit does not hold for attaching to a container.
        client.api.request = functools.partial(client.api.request, timeout=seconds)
        client.ping()
    except faults() as error:
        text = str(error)
        if "Permission denied" in text or "PermissionError" in text:
            raise UserError(
                "the Docker engine's socket may not be opened by this user; add the user to the "
                "group `docker` (and log in again), or change `sandbox` to process."
            ) from error
        raise EngineError(
            f"no Docker engine answers at {address()}: install one (apt-get install docker.io) and "
            "start it (systemctl start docker, or dockerd), or set DOCKER_HOST to where one runs, "
            f"or change `sandbox` to process. The error: {_reason(error, seconds)}"
        ) from error
    return client


def address() -> str:
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


@contextlib.contextmanager
def asked(client: Any, what: str, image: str = "") -> Iterator[None]:
    """Turns all errors of the engine, asked to do `what`, and of its client into an EngineError.
    `image`: if that one is missing, the error says how it is built."""
    import docker

    try:
        yield
    except faults() as error:
        if image and isinstance(error, docker.errors.ImageNotFound):
            name = image.split("/")[-1].split(":")[0]
            raise UserError(
                f"the image {image} is missing. Build it with `python -m trace_bench.sandbox.build "
                f"{name}`, or change `sandbox` to process."
            ) from error
        raise EngineError(
            f"the Docker engine at {address()} did not {what}: "
            f"{_reason(error, client.api.timeout)}. Look at it with `docker info`, or set "
            "DOCKER_HOST to another one; sandbox=process needs none, and sandbox.start sets how "
            "many seconds a request may take."
        ) from error


def faults() -> tuple[type[Exception], ...]:
    """What the engine's client raises, also for an engine that is gone, slow or no engine: its own
    errors, those of HTTP (which are an OSError), and those of reading a strange answer."""
    import docker

    strange = (ValueError, LookupError, TypeError, AttributeError)
    return (docker.errors.DockerException, OSError, *strange)


def _reason(error: BaseException, seconds: float) -> str:
    text = " ".join(str(error).split())
    if "timed out" in text or isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    return f"{type(error).__name__}: {text[:300]}"


# -- containers of ended programs -----------------------------------------------------------------


def reap(client: Any) -> int:
    """Removes containers of programs that have surely ended. Returns how many were removed."""
    import docker

    with asked(client, "list the containers of earlier runs"):
        found = client.api.containers(all=True, filters={"label": LABEL})
        left = [c["Id"] for c in found if left_behind(c["Labels"].get(OWNER, ""), c["State"])]
    count = 0
    for container in left:
        try:
            with asked(client, "remove a container of an earlier run"):
                client.api.remove_container(container, force=True, v=True)
            count += 1
        except EngineError as error:
            if not isinstance(error.__cause__, docker.errors.APIError):
                raise  # else another program is removing it, or the next one will
    return count


class Docker(Engine):
    contains = images = leaves = True

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        self._sandbox, self._image = sandbox, image
        self._client = connect(sandbox.start)
        with asked(self._client, f"look for the image {image}", image):
            self._client.images.get(image)
        reap(self._client)

    def start(self, arguments: Mapping[str, Any]) -> Transport:
        given, image = [encode(arguments).decode().strip()], self._image
        with asked(self._client, f"create a container of {image}", image):
            container = self._client.containers.create(
                image, given, labels=labels(self._sandbox), **walls(self._sandbox)
            )
        return DockerTransport(self._client, container, image)

    @classmethod
    def clean(cls, sandbox: SandboxSettings) -> None:
        with contextlib.closing(connect(sandbox.start)) as client:
            reap(client)


class DockerTransport:
    """A worker in a container; stdin, stdout and stderr over the engine's attach socket."""

    def __init__(self, client: Any, container: Any, image: str) -> None:
        self._tail, self._raw, self._socket = b"", b"", None
        self._client, self._container = client, container
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

    def epitaph(self, wait: float = 0) -> str:
        how = None
        with contextlib.suppress(EngineError), asked(self._client, "await a container's end"):
            if wait:
                self._container.wait(timeout=wait)
        with contextlib.suppress(EngineError), asked(self._client, "describe a container"):
            self._container.reload()
            state = self._container.attrs["State"]
            if not state["Running"]:
                how = f"exit code {state['ExitCode']}"
            if state.get("OOMKilled"):
                how = "out of memory"
        return ended(how, self._tail)

    def kill(self) -> None:
        """Removes the container, after closing the channel: the engine does not remove one whose
        output is not read. What it does not remove now, the next program does."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                self._socket.close()
                self._keep.close()
            self._socket = None
        with contextlib.suppress(EngineError), asked(self._client, "remove a container"):
            self._container.remove(force=True, v=True)


def walls(limits: SandboxSettings) -> dict[str, Any]:
    import docker

    most = {"nofile": FILES, "core": 0}
    return {
        "stdin_open": True,
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {"/tmp": f"size={limits.scratch}m,mode=1777,nosuid,nodev,noexec"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "user": "65534:65534",
        "working_dir": "/tmp",
        "environment": IN_WORKER,
        "mem_limit": f"{limits.memory}m",
        "memswap_limit": f"{limits.memory}m",
        "pids_limit": limits.processes,
        "nano_cpus": int(limits.cpus * 1e9),
        "shm_size": "1m",
        "ipc_mode": "private",
        "ulimits": [docker.types.Ulimit(name=k, soft=n, hard=n) for k, n in most.items()],
        # The engine stores no container output: too much of it would fill the disk.
        "log_config": docker.types.LogConfig(type="none"),
    }
