"""A harness that is killed leaves no worker behind, whatever the worker is doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandboxes import ENGINES, containers

from trace_bench.sandbox.choose import ENGINES as ENGINE_OF
from trace_bench.sandbox.engine import FOLDER, Sandbox

PATIENCE = 60.0  # seconds until a worker must be gone; a machine may be busy

PROGRAM = '''
import os, sys, time
from sandboxes import ROOTS, SUITE, untrusted_suite
from trace_bench.core.types import Task
from trace_bench.sandbox.engine import Sandbox

SOURCE = """
import os, subprocess, sys
from trace_bench.core import protocols
from trace_bench.core.types import Step

class Env(protocols.Env):
    def reset(self, task):
        if place := task.data["place"]:
            child = subprocess.Popen(["sleep", "3600"])
            with open(place + ".new", "w") as file:
                file.write(f"[{os.getpid()}, {os.getppid()}, {child.pid}]")
            os.rename(place + ".new", place)
        else:  # in a container
            open("/tmp/loops", "w").close()
        while True:
            pass
    def step(self, action):
        pass
    def close(self):
        pass
"""
kind, place, holds = sys.argv[1:]
own = {"run": "orphans", "folder": place, "roots": ROOTS}
sandbox = Sandbox(kind, deadline=3600.0, allow_untrusted=True, **own)
suite = untrusted_suite(SOURCE + SUITE, sandbox, print)
if holds == "holds" and os.fork() == 0:  # a child of the host that outlives it, with all its files
    open(place + ".child", "w").write(str(os.getpid()))
    time.sleep(3600)
    os._exit(0)
data = {"place": place if kind == "process" else ""}
suite.make().reset(Task("loops/1", "loops", "train", 1, data))
'''


def wait(what: str, there: Callable[[], object]) -> Any:
    """The first true value of `there`."""
    until = time.monotonic() + PATIENCE
    while not (value := there()):
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.1)
    return value


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def start(kind: str, place: Path, holds: str = "") -> subprocess.Popen[bytes]:
    """A harness whose one worker loops without end."""
    tests = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, kind, str(place), holds], env=tests)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where a worker writes [its id, its keeper's, its child's]; ends what a test left."""
    yield tmp_path / "pids"
    for file in tmp_path.glob("pids*"):
        pids = json.loads(file.read_text())
        for pid in pids if isinstance(pids, list) else [pids]:
            if running(pid):
                os.kill(pid, signal.SIGKILL)


def end(host: subprocess.Popen[bytes]) -> None:
    host.kill()
    host.wait()


def looping_in(place: Path) -> list[int]:
    return wait("the worker loops", lambda: place.exists() and json.loads(place.read_text()))


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize("holds", ["", "holds"])
def test_a_looping_worker_ends_with_its_host(place: Path, holds: str) -> None:
    """Also where another child of the host holds the other end of the worker's stdin."""
    host = start("process", place, holds)
    pids = looping_in(place)
    assert all(map(running, pids))
    end(host)
    wait("worker, keeper and child are gone", lambda: not any(map(running, pids)))


def test_a_looping_worker_ends_with_its_keeper(place: Path) -> None:
    host = start("process", place)
    worker, keeper, _ = looping_in(place)
    os.kill(keeper, signal.SIGKILL)
    wait("the worker is gone", lambda: not running(worker))
    end(host)


@pytest.mark.rootless
@pytest.mark.parametrize("holds", ["", "holds"])
def test_a_looping_sandbox_ends_with_its_host(place: Path, holds: str) -> None:
    host = start("bubblewrap", place, holds)

    def loops() -> list[psutil.Process]:
        """Its processes, once one of them has used a second of CPU time."""
        try:
            children = psutil.Process(host.pid).children(recursive=True)
            workers = [p for p in children if "trace_bench.sandbox.worker" in p.cmdline()]
            return workers if any(p.cpu_times().user > 1.5 for p in workers) else []
        except psutil.NoSuchProcess:  # one that has just ended, zombies too
            return []

    workers = wait("the worker loops", loops)
    assert len(workers) >= 3  # bwrap, the keeper, the worker
    end(host)
    wait("all are gone", lambda: not any(running(p.pid) for p in workers))


def looping(engine: str, place: Path) -> list[str]:
    """The ids of this harness's containers in which the endless loop has begun."""
    command = [engine, "exec"], ["test", "-e", "/tmp/loops"]
    return [
        c for c in containers(engine, f"{FOLDER}={place}", "--filter=status=running")
        if subprocess.run([*command[0], c, *command[1]], capture_output=True).returncode == 0
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_hosts_container_goes_and_a_live_ones_stays(engine: str, tmp_path: Path) -> None:
    """Both runs have one fingerprint."""
    places = [tmp_path / "dead", tmp_path / "alive"]
    dead, alive = (start(engine, place) for place in places)
    try:
        for place in places:
            wait("the container loops", partial(looping, engine, place))
        before = looping(engine, places[1])
        end(dead)
        wait("the worker has ended", lambda: not looping(engine, places[0]))
        ENGINE_OF[engine].clean(Sandbox(engine))  # type: ignore[arg-type]
        assert containers(engine, f"{FOLDER}={places[0]}") == []
        assert looping(engine, places[1]) == before and alive.poll() is None
    finally:
        for host, place in zip((dead, alive), places, strict=True):
            end(host)
            for left in containers(engine, f"{FOLDER}={place}"):
                subprocess.run([engine, "rm", "--force", left], check=False)
