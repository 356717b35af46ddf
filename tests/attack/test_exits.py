"""Parts that end the program, or answer no question about themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy import ToySuite

from trace_bench.__main__ import main
from trace_bench.core.protocols import Env, Method, MethodPlan, Tracker
from trace_bench.core.types import AgentSpec, Step
from trace_bench.policies.scripted import IdlePolicy
from trace_bench.runner.api import load

HERE = __name__
Said = pytest.CaptureFixture[str]
QUICK = ["method=base", "policy=idle", "evaluation.limit=3", "evaluation.split=dev", "run_dir=run"]


class Leaves(Method):
    def plan(self, run: Any) -> MethodPlan:
        return MethodPlan(learns=False)

    def fit(self, base: AgentSpec, tasks: Any, lab: Any) -> AgentSpec:
        sys.exit(0)


class Stops(IdlePolicy):
    def collect(self) -> Any:
        sys.exit(0)


def made() -> Any:
    sys.exit(0)


class _Silent(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(f"ask for {name} elsewhere")


class Silent(metaclass=_Silent):
    """A class that answers no question about itself."""


class Lost(Tracker):
    def __init__(self) -> None:
        sys.exit(0)


class LostLater(Lost):
    def __init__(self) -> None:
        return

    def log(self, values: Any) -> None:
        return

    def conclude(self, summary: Any) -> None:
        sys.exit(0)

    def close(self) -> None:
        sys.exit(0)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capfd: Said, *arguments: str) -> str:
    """The one line that ends a run of these settings with exit code 2."""
    chosen = {a.partition("=")[0].removesuffix(".factory") for a in arguments}
    others = [word for word in QUICK if word.partition("=")[0] not in chosen]
    assert main([*others, *arguments]) == 2
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("error: ")] == said[-1:]
    assert not Path("run", "summary.json").exists()
    return said[-1]


ENDINGS = [
    (f"method.factory={HERE}:Leaves", ["test_exits.py, line", "ended the run", "SystemExit"]),
    (f"policy.factory={HERE}:Stops", ["test_exits.py, line", "SystemExit: 0"]),
    (f"env.factory={HERE}:made", ["env.factory", "raised SystemExit: 0", "`env.factory`"]),
    (f"tracker.factory={HERE}:Lost", ["tracker.factory", "SystemExit"]),
    (f"env.factory={HERE}:Silent", ["env.factory", "raised RuntimeError: ask for"]),
]


@pytest.mark.parametrize(("setting", "words"), ENDINGS)
def test_a_part_that_ends_the_program_is_named(setting: str, words: list[str], capfd: Said) -> None:
    line = refused(capfd, setting)
    assert all(word in line for word in words), line


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["stdout=gone", "stdout=gone, stderr=gone"])
def test_a_run_whose_output_nobody_reads_finishes_or_does_not_end_with_0(gone: str) -> None:
    program = (
        "import os, subprocess, sys\n"
        "there, gone = os.pipe(); os.close(there)\n"
        "command = [sys.executable, '-m', 'trace_bench', *sys.argv[1:]]\n"
        f"print(subprocess.run(command, {gone}).returncode)\n"
    )
    command = [sys.executable, "-c", program, *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finished = Path("run", "summary.json").exists()
    assert (done.stdout.splitlines()[-1] == "0") == finished, done.stdout + done.stderr


def test_an_environment_that_ends_the_program_loses_its_episode(capfd: Said) -> None:
    assert "SystemExit: 3" in refused(
        capfd, f"env.factory={HERE}:Exiting", "evaluation.split=train", "protocol=paper"
    )


class _ExitingEnv(Env):
    def reset(self, task: Any) -> Step:
        sys.exit(3)

    def step(self, action: Any) -> Step:
        sys.exit(3)

    def close(self) -> None:
        sys.exit(3)


class Exiting(ToySuite):
    def make(self) -> Any:
        return _ExitingEnv()


def test_a_tracker_that_ends_the_program_ends_only_itself() -> None:
    assert main([*QUICK, f"tracker.factory={HERE}:LostLater"]) == 0
    assert "SystemExit" in str(load("run").summary.health)


def test_a_dry_run_builds_what_a_run_builds(capfd: Said) -> None:
    assert main(["method=base", f"tracker.factory={HERE}:Lost", "dry_run=true"]) == 1
    assert "raised SystemExit: 0" in capfd.readouterr().out.partition("what keeps it")[2]
