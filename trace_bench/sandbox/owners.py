"""Which program a container belongs to, so that the next one can remove those of programs that have
ended.

Containers carry three labels: `trace_bench`, the run's fingerprint; `trace_bench.folder`, its
folder, since runs with the same settings have the same fingerprint; and `trace_bench.host`, the
process that owns them, by which the next program knows those that a killed program left behind.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from trace_bench.core.store import process, running

LABEL, FOLDER, OWNER = "trace_bench", "trace_bench.folder", "trace_bench.host"
_PROC = Path("/proc")


def labels(run: str, folder: str) -> dict[str, str]:
    return {LABEL: run, FOLDER: folder, OWNER: owner()}


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
