"""Environments on this machine without a wall: in this process, or in child processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.sandbox.docker import Docker, connect
from trace_bench.sandbox.engine import COMMAND, Engine, Log, Sandbox
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.transport import ProcessTransport, Transport


class Processes(Engine):
    """Child processes of this user, which inherit only the path of its variables, so that they
    receive no keys."""

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        self._python = python or sys.executable

    def start(self, arguments: Mapping[str, Any]) -> Transport:
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [self._python, *COMMAND[1:], encode(arguments).decode().strip()]
        return ProcessTransport(command, env, hint="change `env.python`")


class Inline(Processes):
    """This process. Programs of others, where they are allowed, have child processes."""

    here = True


class Auto(Docker):
    """Containers where a Docker engine answers, else this process. Programs of others need the
    containers."""

    @classmethod
    def chosen(cls, sandbox: Sandbox, log: Log) -> type[Engine]:
        try:
            connect(sandbox.start).close()
        except UserError as error:
            log(f"sandbox=auto: environments run in this process, since {error}")
            return Inline
        return Docker
