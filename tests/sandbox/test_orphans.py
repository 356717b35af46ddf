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

from trace_bench.sandbox.docker import connect
from trace_bench.sandbox.engine import FOLDER, Sandbox
from trace_bench.sandbox.podman import Podman

PATIENCE = 60.0  # seconds until a worker must be gone; a machine may be busy

PROGRAM = '''
import os, sys, time
from sandboxes import ROOTS, untrusted_suite
from trace_bench.core.types import Task
from trace_bench.sandbox.engine import Sandbox

SOURCE = """
import os, subprocess, sys
from trace_bench.core.types import Step

class Env:
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

class Suite:
    name, variant = "loops", "test"
    def splits(self):
        return ["train"]
    def tasks(self, split):
        return []
    def make(self):
        return Env()

def suite():
    return Suite()
"""
kind, place, holds = sys.argv[1:]
known = {"allow_untrusted": True, "run": "orphans", "folder": place, "roots": ROOTS}
sandbox = Sandbox(kind, deadline=3600.0, **known)
suite = untrusted_suite(SOURCE, sandbox, print)
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
    while not (found := there()):
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.1)
    return found


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
        found = json.loads(file.read_text())
        for pid in found if isinstance(found, list) else [found]:
            if running(pid):
                os.kill(pid, signal.SIGKILL)


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize("holds", ["", "holds"])
def test_a_looping_worker_ends_with_its_host(place: Path, holds: str) -> None:
    """Also where another child of the host holds the other end of the worker's stdin."""
    host = start("process", place, holds)
    pids = wait("the worker loops", lambda: place.exists() and json.loads(place.read_text()))
    assert all(map(running, pids))
    host.kill()
    host.wait()
    wait("worker, keeper and child are gone", lambda: not any(map(running, pids)))


def test_a_looping_worker_ends_with_its_keeper(place: Path) -> None:
    host = start("process", place)
    worker, keeper, _ = wait(
        "the worker loops", lambda: place.exists() and json.loads(place.read_text())
    )
    os.kill(keeper, signal.SIGKILL)
    wait("the worker is gone", lambda: not running(worker))
    host.kill()
    host.wait()


@pytest.mark.rootless
@pytest.mark.parametrize("holds", ["", "holds"])
def test_a_looping_sandbox_ends_with_its_host(place: Path, holds: str) -> None:
    host = start("bubblewrap", place, holds)

    def loops() -> list[psutil.Process]:
        """Its processes, once one of them has used a second of CPU time."""
        try:
            found = psutil.Process(host.pid).children(recursive=True)
            workers = [p for p in found if "trace_bench.sandbox.worker" in p.cmdline()]
            return workers if any(p.cpu_times().user > 1.5 for p in workers) else []
        except psutil.NoSuchProcess:  # one that has just ended, zombies too
            return []

    workers = wait("the worker loops", loops)
    assert len(workers) >= 3  # bwrap, the keeper, the worker
    host.kill()
    host.wait()
    wait("all are gone", lambda: not any(running(p.pid) for p in workers))


def running_in(client: Any, place: Path) -> list[str]:
    """The ids of this harness's containers in which the endless loop has begun."""
    found = client.containers.list(filters={"label": f"{FOLDER}={place}"})
    loops = ["test", "-e", "/tmp/loops"]
    return [c.id for c in found if c.exec_run(loops).exit_code == 0]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts harnesses with containers, in folders of these names; ends what a test left."""
    started: dict[str, subprocess.Popen[bytes]] = {}

    def begin(name: str) -> subprocess.Popen[bytes]:
        started[name] = start("docker", tmp_path / name)
        return started[name]

    yield begin
    for name, host in started.items():
        host.kill()
        host.wait()
        own = {"label": f"{FOLDER}={tmp_path / name}"}
        for left in connect().containers.list(all=True, filters=own):
            left.remove(force=True)


@pytest.mark.docker
def test_a_looping_container_ends_with_its_host(hosts: Any, tmp_path: Path) -> None:
    client, host = connect(), hosts("one")
    wait("the container loops", lambda: running_in(client, tmp_path / "one"))
    host.kill()
    host.wait()
    own = {"label": f"{FOLDER}={tmp_path / 'one'}"}
    wait("the container has ended", lambda: not client.containers.list(filters=own))


@pytest.mark.docker
def test_a_run_with_the_same_settings_elsewhere_keeps_its_containers(
    hosts: Any, tmp_path: Path
) -> None:
    """Both have one fingerprint. The containers of the killed run are removed."""
    client, first, other = connect(), hosts("dead"), hosts("alive")
    for name in ("dead", "alive"):
        wait("the container loops", partial(running_in, client, tmp_path / name))
    first.kill()
    first.wait()
    kept = running_in(client, tmp_path / "alive")
    hosts("third")
    wait("the container loops", lambda: running_in(client, tmp_path / "third"))
    dead = {"label": f"{FOLDER}={tmp_path / 'dead'}"}
    assert client.containers.list(all=True, filters=dead) == []
    assert running_in(client, tmp_path / "alive") == kept and other.poll() is None


def by_podman(place: Path) -> list[str]:
    """The ids of this harness's containers, running or not."""
    shown = ["podman", "ps", "--all", "--quiet", f"--filter=label={FOLDER}={place}"]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()


def loops_in_podman(place: Path) -> list[str]:
    """Those in which the endless loop has begun."""
    seen = ("test", "-e", "/tmp/loops")
    return [
        c for c in by_podman(place)
        if subprocess.run(["podman", "exec", c, *seen], capture_output=True).returncode == 0
    ]  # fmt: skip


@pytest.mark.podman
def test_a_killed_hosts_container_goes_and_a_running_ones_stays(tmp_path: Path) -> None:
    places = [tmp_path / "dead", tmp_path / "alive"]
    dead, alive = (start("podman", place) for place in places)
    try:
        for place in places:
            wait("the container loops", partial(loops_in_podman, place))
        dead.kill()
        dead.wait()
        wait("the worker has ended", lambda: not loops_in_podman(places[0]))
        Podman.clean(Sandbox("podman"))
        assert by_podman(places[0]) == []
        assert loops_in_podman(places[1]) and alive.poll() is None
    finally:
        for host, place in zip((dead, alive), places, strict=True):
            host.kill()
            host.wait()
            for left in by_podman(place):
                subprocess.run(["podman", "rm", "--force", "--time=0", left], check=False)
