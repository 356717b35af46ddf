"""What runs workers: a class for each choice of the setting `sandbox`, which says what it can do.

An engine is little more than a command line, a list of limits and a way to end what it started: a
worker speaks JSON lines over stdin and stdout wherever it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trace_bench.core.errors import EngineError, UserError
from trace_bench.sandbox.transport import Transport
from trace_bench.settings.schema import SandboxSettings

FILES = 256  # open at once in a sandbox
IN_WORKER = {"HOME": "/tmp", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
IN_IMAGE = {
    "PYTHONPATH": "/opt/project:/opt/site",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
"""The variables of the project's images, for engines that take a root folder without them."""
COMMAND = ("python3", "-m", "trace_bench.sandbox.worker")
"""What an image starts."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class Sandbox(SandboxSettings):
    """With the run that owns the containers: its fingerprint and its folder."""

    run: str = "unnamed"
    folder: str = ""


class Engine(ABC):
    """A kind of sandbox. `image`: what its workers run in; `python`: the interpreter of a worker
    that shares this machine's files. Making one raises UserError if it cannot be used here."""

    here: ClassVar[bool] = False
    """Environments run in this process; the class is never made."""
    contains: ClassVar[bool] = False
    """It keeps in code of others."""
    images: ClassVar[bool] = False
    """Workers run in an image, or in a folder made of one."""
    leaves: ClassVar[bool] = False
    """A program that is killed may leave something behind, which `clean` removes."""

    @abstractmethod
    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None: ...

    @abstractmethod
    def start(self, arguments: Mapping[str, Any]) -> Transport:
        """A new worker with these start arguments (worker.py)."""

    @property
    def unlimited(self) -> Sequence[str]:
        """What it cannot limit on this machine, in words."""
        return ()

    @classmethod
    def chosen(cls, sandbox: Sandbox, log: Log) -> type[Engine]:
        """The engine to use for the project's own environments."""
        return cls

    @classmethod  # noqa: B027 (most have nothing to remove)
    def clean(cls, sandbox: SandboxSettings) -> None:
        """Removes what ended programs left behind. Raises UserError without an engine."""


def rlimits(sandbox: SandboxSettings) -> dict[str, int]:
    """Limits that a worker sets for itself, for an engine that has none; `resource.RLIMIT_*` by
    name. Linux counts DATA and FSIZE for each process, NPROC for the worker's user namespace."""
    size = sandbox.memory * 2**20
    return {"NOFILE": FILES, "CORE": 0, "NPROC": sandbox.processes, "DATA": size, "FSIZE": size}


def root_of(image: str, sandbox: SandboxSettings) -> Path:
    """The folder that holds the image's files. Raises UserError if it is not there."""
    place = Path(sandbox.roots).expanduser() / image.replace(":", "/")
    if not (place / "opt/project/trace_bench").is_dir() and not place.is_file():
        raise UserError(
            f"sandbox={sandbox.name} runs environments on the files of the image {image}, and "
            f"{place} does not hold them. docs/sandbox.md says how to export an image; "
            "`sandbox.roots` names the folder of all of them, `env.image` another one."
        )
    return place


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


def nobody() -> dict[str, Any]:
    """Arguments of subprocess.Popen: root starts a sandbox as a user without rights, since a
    process of root owns files of the machine, and Linux does not limit how many it starts."""
    if os.geteuid() != 0:
        return {}
    return {"user": 65534, "group": 65534, "extra_groups": []}
