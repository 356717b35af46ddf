"""What runs workers: a class for each choice of the setting `sandbox`, which says what it can do.

An engine is little more than a command line, a list of limits and a way to end what it started: a
worker speaks JSON lines over stdin and stdout wherever it runs.

Containers carry three labels: `trace_bench`, the run's fingerprint; `trace_bench.folder`, its
folder, since runs with the same settings have the same fingerprint; and `trace_bench.host`, the
process that owns them, by which the next program knows those that a killed program left behind.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trace_bench.core.errors import EngineError
from trace_bench.core.store import process, running
from trace_bench.sandbox.workers import Transport
from trace_bench.settings.schema import SandboxSettings

LABEL, FOLDER, OWNER = "trace_bench", "trace_bench.folder", "trace_bench.host"
_PROC = Path("/proc")
FILES = 256  # open at once in a sandbox
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
    def start(self, arguments: Mapping[str, Any]) -> Transport:
        """A new worker with these start arguments (worker.py)."""

    @classmethod
    def chosen(cls, sandbox: SandboxSettings, log: Callable[[str], None]) -> type[Engine]:
        """What is used in its place on this machine."""
        return cls

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
