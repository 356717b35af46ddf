"""bubblewrap: namespaces without an engine, a daemon or any right on the machine, on the root
folder of an image. It sets no cgroup: the worker limits itself (`rlimits`), and what that leaves
open is said at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trace_bench.core.errors import EngineError
from trace_bench.sandbox.engine import (
    COMMAND,
    IN_IMAGE,
    IN_WORKER,
    Engine,
    Sandbox,
    answer,
    nobody,
    program,
    rlimits,
    root_of,
)
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.transport import ProcessTransport, Transport

OLDEST = (0, 8)  # with --disable-userns
UNLIMITED = (
    "memory in total (each process has `sandbox.memory`; memory that is shared, or in files in "
    "memory, is counted nowhere)",
    "CPU time (`sandbox.cpus` is not used)",
    "which system calls are made (no filter)",
    "programs in /tmp (they run, with no more rights than the environment)",
)


class Bubblewrap(Engine):
    contains = images = True
    unlimited = UNLIMITED  # type: ignore[assignment]

    def __init__(self, sandbox: Sandbox, image: str, python: str | None = None) -> None:
        bwrap = program("bwrap", "apt-get install bubblewrap, or the site's own package", sandbox)
        found = answer([bwrap, "--version"], sandbox)
        if tuple(int(n) for n in re.findall(r"\d+", found)[:2]) < OLDEST:
            raise EngineError(
                f"sandbox={sandbox.name} needs bubblewrap {'.'.join(map(str, OLDEST))} or later; "
                f"this is {found.strip()}. Change `sandbox`."
            )
        self._limits = rlimits(sandbox)
        self._command = [bwrap, *walls(str(root_of(image, sandbox).resolve()), sandbox)]
        answer([*self._command, "true"], sandbox, **nobody())

    def start(self, arguments: Mapping[str, Any]) -> Transport:
        worker = encode({**arguments, "rlimits": self._limits}).decode().strip()
        command = [*self._command, *COMMAND, worker]
        return ProcessTransport(command, {}, hint="change `sandbox`", **nobody())


def walls(root: str, sandbox: Sandbox) -> Sequence[str]:
    """The arguments that make the sandbox: new namespaces, no capabilities, nothing writable but
    /tmp. The worker's keeper is process 1, as in a container; all ends with the parent."""
    variables = [("--setenv", *pair) for pair in {**IN_IMAGE, **IN_WORKER}.items()]
    small = ("--size", str(2**20), "--perms", "1777", "--tmpfs", "/dev/shm")
    return [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--die-with-parent"),
        *("--new-session", "--as-pid-1"),
        *("--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--cap-drop", "ALL"),
        *("--clearenv", *(word for pair in variables for word in pair)),
        *("--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev", *small),
        *("--remount-ro", "/dev"),
        *("--size", str(sandbox.scratch * 2**20), "--perms", "1777", "--tmpfs", "/tmp"),
        *("--chdir", "/tmp"),
    ]
