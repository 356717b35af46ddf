"""Namespaces on the files of an image by bubblewrap, without a daemon or any right on the machine.
It sets no cgroup for a user without rights: the worker limits itself (`rlimits`), and what that
leaves open is said at the start."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.core.errors import EngineError, UserError
from trace_bench.sandbox import engine
from trace_bench.sandbox.protocol import encode
from trace_bench.sandbox.workers import Worker
from trace_bench.settings.schema import SandboxSettings

OLDEST = (0, 8)  # bubblewrap with --disable-userns
IN_IMAGE = {
    "PYTHONPATH": "/opt/project:/opt/site",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
"""The variables of the project's images, which their files do not hold."""


class Bubblewrap(engine.Engine):
    contains = images = True
    unlimited = (
        "memory in total (each process has `sandbox.memory`; memory that is shared, or in files in "
        "memory, is counted nowhere)",
        "CPU time (`sandbox.cpus` is not used)",
        "which system calls are made (no filter)",
        "programs in /tmp (they run, with no more rights than the environment)",
    )

    def __init__(self, sandbox: engine.Sandbox, image: str, python: str | None = None) -> None:
        bwrap = engine.program(
            "bwrap", "apt-get install bubblewrap, or the site's own package", sandbox
        )
        version = engine.answer([bwrap, "--version"], sandbox)
        if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < OLDEST:
            raise EngineError(
                f"sandbox={sandbox.name} needs bubblewrap {'.'.join(map(str, OLDEST))} or later; "
                f"this is {version.strip()}. Change `sandbox`."
            )
        root = str(root_of(image, sandbox).resolve())
        self._command = [bwrap, *walls(root)]
        self._limits, self._user = engine.rlimits(sandbox), nobody()
        engine.answer([*self._command, "true"], sandbox, **self._user)

    def start(self, arguments: Mapping[str, Any]) -> Worker:
        worker = encode({**arguments, "rlimits": self._limits}).decode().strip()
        command = [*self._command, *engine.COMMAND, worker]
        return Worker(command, {}, hint="change `sandbox`", **self._user)


def walls(root: str) -> Sequence[str]:
    """The arguments that make the sandbox: new namespaces, no capabilities, nothing writable but
    /tmp. The worker's keeper is process 1, as in a container; all ends with the parent."""
    variables = [("--setenv", *pair) for pair in {**IN_IMAGE, **engine.IN_WORKER}.items()]
    small = ("--size", str(2**20), "--perms", "1777", "--tmpfs", "/dev/shm")
    return [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--die-with-parent"),
        *("--new-session", "--as-pid-1"),
        *("--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--cap-drop", "ALL"),
        *("--clearenv", *(word for pair in variables for word in pair)),
        *("--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev", *small),
        *("--remount-ro", "/dev"),
        *("--size", str(engine.SCRATCH * 2**20), "--perms", "1777", "--tmpfs", "/tmp"),
        *("--chdir", "/tmp"),
    ]


def root_of(image: str, sandbox: SandboxSettings) -> Path:
    """The folder that holds the image's files. Raises UserError if it is not there."""
    place = Path(sandbox.roots).expanduser() / image.replace(":", "/")
    if not (place / "opt/project/trace_bench").is_dir():
        raise UserError(
            f"sandbox={sandbox.name} runs environments on the files of the image {image}, and "
            f"{place} does not hold them. docs/sandbox.md says how to export an image; "
            "`sandbox.roots` names the folder of all of them, `env.image` another one."
        )
    return place


def nobody() -> dict[str, Any]:
    """Arguments of subprocess.Popen: root starts a sandbox as a user without rights, since a
    process of root owns files of the machine, and Linux does not limit how many it starts."""
    if os.geteuid() != 0:
        return {}
    return {"user": 65534, "group": 65534, "extra_groups": []}
