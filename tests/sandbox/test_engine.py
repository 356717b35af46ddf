"""A Docker engine that is gone, slow or no engine ends in an error that says what was asked, where,
and which setting to change. No engine is needed: its faults are played by a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxes import chosen, in_sandbox
from servers.engine import CLOSES, FAILS, HTML, STALLS, Reply, engine, failing, well

from trace_bench.__main__ import main
from trace_bench.core.errors import EngineError
from trace_bench.sandbox import build
from trace_bench.sandbox.docker import connect, reap
from trace_bench.sandbox.engine import Sandbox, left_behind, owner

pytest.importorskip("docker", reason="the Docker SDK is not installed")

PHONE = chosen("toolsandbox", "embedded")
SOON = Sandbox("docker", start=0.5, run="engine")
FAULTS: dict[str, tuple[Reply, str]] = {
    "stalls": (STALLS, "no answer within 0.5 s"),
    "closes": (CLOSES, "Connection"),
    "fails": (FAILS, "the disk is on fire"),
    "is a proxy": (HTML, "Error"),
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the engine listens; a Unix socket's path must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "engine"
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield path


def begun(sandbox: Sandbox = SOON) -> Any:
    """A suite whose first episode begins, which needs a container."""
    suite = in_sandbox(PHONE, sandbox)
    try:
        return suite.make().reset(suite.tasks("train")[0])
    finally:
        suite.close()


@pytest.mark.parametrize(("reply", "why"), FAULTS.values(), ids=FAULTS)
def test_what_is_no_engine_is_reported(reply: Reply, why: str, place: Path) -> None:
    with engine(place, failing("/version", reply)), pytest.raises(EngineError) as caught:
        connect(0.5)
    said = str(caught.value)
    assert f"no Docker engine answers at unix://{place}" in said and why in said
    assert "change `sandbox` to process" in said and len(said) < 1000


ASKED = {
    "/_ping": "no Docker engine answers",
    "/containers/json": "did not list the containers of earlier runs",
    "/containers/create": "did not create a container of trace-bench/base:latest",
    "/containers/c0ffee/attach": "did not start a container of trace-bench/base:latest",
}


@pytest.mark.parametrize(("reply", "why"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(("path", "what"), ASKED.items(), ids=ASKED)
def test_an_engine_that_fails_later_is_reported(
    path: str, what: str, reply: Reply, why: str, place: Path
) -> None:
    if reply == HTML and path in ("/_ping", "/containers/c0ffee/attach"):
        pytest.skip("any answer will do")
    with engine(place, failing(path, reply)), pytest.raises(EngineError) as caught:
        begun()
    said = str(caught.value)
    assert what in said and f"unix://{place}" in said and "sandbox" in said and len(said) < 1000
    assert why in said or path.endswith("attach")  # what does not upgrade the connection, fails


def test_an_engine_that_ends_during_a_run_ends_it_with_a_message(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The container is made and ends at once; after that nothing is there any more."""
    seen: list[str] = []

    def script(method: str, path: str) -> Reply:
        seen.append(path)
        return STALLS if "/containers/create" in seen[:-1] else well(method, path)

    settings = [
        "method=base",
        "policy=reference",
        "evaluation.limit=2",
        f"run_dir={tmp_path / 'r'}",
    ]
    with engine(place, script):
        assert main([*settings, "sandbox=docker", "sandbox.start=1"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: the Docker engine at unix://")


def test_auto_goes_on_without_a_stalled_engine(place: Path) -> None:
    said: list[str] = []
    with engine(place, lambda *_: STALLS):
        suite = in_sandbox(PHONE, Sandbox("auto", start=0.5), log=said.append)
    assert suite.make().reset(suite.tasks("train")[0]).messages
    assert len(said) == 1 and "no answer within 0.5 s" in said[0]


@pytest.mark.parametrize("kind", ["gone", "no address", "no port"])
def test_an_address_without_an_engine_is_reported(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = {
        "gone": "tcp://127.0.0.1:1",
        "no address": "http//nowhere",
        "no port": "tcp://127.0.0.1:99999",
    }[kind]
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(EngineError, match="no Docker engine answers at"):
        connect(0.5)


def test_an_image_that_cannot_be_built_is_reported(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "connect", lambda: connect(0.5))
    with engine(place, failing(f"/images/{build.DEFAULT_BASE}/json", CLOSES)):
        assert build.main(["base"]) == 2
    assert f"did not look for the image {build.DEFAULT_BASE}" in capsys.readouterr().err


# -- whose containers are removed -----------------------------------------------------------------


def test_only_what_has_no_owner_is_left_behind() -> None:
    boot, space, pid, started = owner().split()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = f"{boot} {space} {ended.pid} 1"
    recycled = f"{boot} {space} {pid} {int(started) - 1}"
    for state in ("running", "exited", "created", "paused"):
        assert not left_behind(owner(), state), "this process lives"
        assert left_behind(dead, state) and left_behind(recycled, state)
    elsewhere = [f"another {space} {pid} {started}", f"{boot} pid:[1] {pid} {started}"]
    for whose in (*elsewhere, "", "a b c", f"{boot} {space} x {started}", f"{boot} {space}"):
        assert left_behind(whose, "exited") and not left_behind(whose, "running"), whose


def test_a_program_that_nobody_has_waited_for_has_ended() -> None:
    program = "import trace_bench.sandbox.engine as e; print(e.owner(), flush=True)"
    ended = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert ended.stdout is not None
    whose = ended.stdout.readline().strip()
    ended.stdout.read()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
    assert left_behind(whose, "running")
    ended.wait()


def test_reaping_removes_what_is_left_and_nothing_else(place: Path) -> None:
    boot, space, pid, started = owner().split()
    owners = {
        "own": owner(),
        "dead": f"{boot} {space} {2**22 + 1} 7",
        "far": f"elsewhere {space} {pid} {started}",
    }
    found = [
        {"Id": name, "State": "running", "Labels": {"trace_bench": "same", "trace_bench.host": who}}
        for name, who in owners.items()
    ]

    def script(method: str, path: str) -> Reply:
        listed = path == "/containers/json"
        return (
            (200, "application/json", json.dumps(found).encode()) if listed else well(method, path)
        )

    with engine(place, script) as seen:
        client = connect(5.0)
        assert reap(client) == 1
        client.close()
    assert [r for r in seen if r.startswith("DELETE")] == ["DELETE /containers/dead"]


def fails_to_remove(status: int) -> Callable[[str, str], Reply]:
    dead = [{"Id": "dead", "State": "exited", "Labels": {"trace_bench": "same"}}]

    def script(method: str, path: str) -> Reply:
        if path == "/containers/json":
            return 200, "application/json", json.dumps(dead).encode()
        return (
            (status, "application/json", b'{"message": "gone"}')
            if method == "DELETE"
            else well(method, path)
        )

    return script


@pytest.mark.parametrize("status", [404, 409])
def test_a_container_that_another_program_removes_is_no_error(status: int, place: Path) -> None:
    with engine(place, fails_to_remove(status)):
        client = connect(5.0)
        assert reap(client) == 0
        client.close()
