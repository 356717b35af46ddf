"""A Docker engine that is gone, slow or broken ends in an error that says what was asked and which
setting to change. No engine is needed: its faults are played by a program of its name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandboxes import chosen, in_sandbox

from trace_bench.__main__ import main
from trace_bench.core.errors import EngineError, UserError
from trace_bench.sandbox.engine import ContainerWorker, Docker, Sandbox, left_behind, owner

PHONE = chosen("toolsandbox", "embedded")
SOON = Sandbox("docker", start=1, run="engine")
FAULTS = {
    "stalls": ("exec sleep 60", "no answer within 1 s|no greeting within 1 s"),
    "fails": ("echo the disk is on fire >&2; exit 125", "exit code 125: the disk is on fire"),
}
ASKED = {
    "version": "no Docker engine answers at unix://",
    "image": "image inspect",
    "ps": "ps --all",
    "run": "the environment's worker does not start",
}

Program = Callable[..., Path]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Makes an engine's program with these answers, as shell code by command, in place of those of
    one that has nothing. Returns the file of the commands that it was given."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    def made(**answers: str) -> Path:
        cases = {"version": "echo 1", "image": "echo 1", "ps": "", "rm": "", **answers}
        lines = "".join(f"{command}) {do or ':'} ;;\n" for command, do in cases.items())
        program, log = tmp_path / "docker", tmp_path / "log"
        program.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase $1 in\n{lines}esac\n')
        program.chmod(0o755)
        return log

    return made


def begun(sandbox: Sandbox = SOON) -> Any:
    """The first step of a suite's first episode, which needs a container."""
    suite = in_sandbox(PHONE, sandbox)
    try:
        return suite.make().reset(suite.tasks("train")[0])
    finally:
        suite.close()


@pytest.mark.parametrize(("fault", "why"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize(("command", "what"), ASKED.items(), ids=ASKED)
def test_an_engine_that_fails_is_reported(
    command: str, what: str, fault: str, why: str, docker: Program
) -> None:
    docker(**{command: fault})
    with pytest.raises(EngineError, match=why) as caught:
        begun()
    assert what in str(caught.value) and len(str(caught.value)) < 1000


def test_what_the_engine_lacks_is_named(docker: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    docker(image="echo Error: No such image: x >&2; exit 1")
    with pytest.raises(UserError, match=r"base:latest is missing\. Build it with .*build base"):
        begun()
    docker(version="echo permission denied while trying to connect >&2; exit 1")
    with pytest.raises(UserError, match="may not be opened by this user; add the user to the"):
        begun()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="needs the program `docker` in PATH"):
        begun()


def test_an_engine_that_ends_during_a_run_ends_it_with_a_message(
    docker: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The container is made and ends at once; after that nothing answers any more."""
    docker(run="echo docker: the engine is gone >&2; exit 125")
    settings = ["method=base", "policy=reference", "evaluation.limit=2", "evaluation.split=dev"]
    assert main([*settings, f"run_dir={tmp_path / 'r'}", "sandbox=docker"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and "exit code 125: docker: the engine is gone" in last


def test_an_engine_that_hangs_holds_no_end_up(docker: Program, tmp_path: Path) -> None:
    docker(rm="exec sleep 60", run="exec cat")
    program = str(tmp_path / "docker")
    ContainerWorker([program, "run"], [program, "rm"], SOON).kill()


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


def test_cleaning_removes_what_is_left_and_nothing_else(docker: Program) -> None:
    """A container that another program removes meanwhile is no error."""
    boot, space, pid, started = owner().split()
    ended = f"{boot} {space} {2**22 + 1}"
    owners = {"live": owner(), "dead": f"{ended} 7", "gone": f"{ended} 8"}
    owners["far"] = f"elsewhere {space} {pid} {started}"
    listed = "".join(rf"{name}\trunning\t{whose}\n" for name, whose in owners.items())
    log = docker(ps=f"printf '{listed}'", rm="[ $3 = dead ]")
    Docker.clean(SOON)
    removed = [line for line in log.read_text().splitlines() if line.startswith("rm ")]
    assert removed == ["rm --force dead", "rm --force gone"]
