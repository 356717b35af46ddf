"""Apptainer, as clusters have it: namespaces on the files of an image, or a .sif file. Its command
line is made as its documentation says and tested with a stand-in; no real Apptainer has run it.

It sets no cgroup for a user without rights: the worker limits itself (`rlimits`), as with
`bubblewrap.py`. Only PATH of this program's variables reaches it, so that none (APPTAINER_BIND) can
open the sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trace_bench.sandbox.engine import (
    COMMAND,
    IN_IMAGE,
    IN_WORKER,
    Engine,
    Sandbox,
    answer,
    program,
    rlimits,
    root_of,
)
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.transport import ProcessTransport, Transport


class Apptainer(Engine):
    """Containers by Apptainer 1.1 or later, or SingularityCE by that name."""

    images = True  # whether it keeps in code of others is not known before a real one was attacked
    unlimited = (
        "memory in total (each process has `sandbox.memory`)",
        "CPU time (`sandbox.cpus` is not used)",
        "/tmp by `sandbox.scratch` (it is as large as the site allows, `sessiondir max size`)",
        "which system calls are made (no filter of this project's)",
        "and its command line was tested with a stand-in only",
    )  # type: ignore[assignment]

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        found = program("apptainer", "apptainer.org, or the site's own module", sandbox)
        self._variables = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/tmp"}
        self._limits = rlimits(sandbox)
        self._command = [found, "exec", *walls(), str(root_of(image, sandbox).resolve())]
        answer([*self._command, "true"], sandbox, env=self._variables)

    def start(self, arguments: Mapping[str, Any]) -> Transport:
        worker = encode({**arguments, "rlimits": self._limits}).decode().strip()
        command = [*self._command, *COMMAND, worker]
        return ProcessTransport(command, self._variables, hint="change `sandbox`")


def walls() -> list[str]:
    """The arguments that make the sandbox: namespaces of its own, no network or privileges, none of
    the host's folders, nothing writable but /tmp."""
    return [
        *("--userns", "--containall", "--cleanenv", "--no-eval", "--no-privs"),
        *("--net", "--network=none", "--hostname=sandbox"),
        *("--no-home", "--no-mount=hostfs,bind-paths,cwd", "--pwd=/tmp"),
        *(f"--env={key}={value}" for key, value in {**IN_IMAGE, **IN_WORKER}.items()),
    ]
