"""Whole runs on a suite that does harm (hostile_world.py), in this process and in workers: each
harmful episode is a typed failure without a score, those beside it end well, and the run says no
traceback, takes little memory and leaves no process behind."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hostile_world import ANYWHERE, GOOD, IN_A_WORKER, UNNOTICED

from trace_bench.__main__ import main
from trace_bench.core.text import LONGEST_ERROR

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux' processes"),
    pytest.mark.slow,
]
MIB = 1024  # of what getrusage counts
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Run:
    code: int
    said: str
    memory: float  # MiB that it took at most beyond what there was
    summary: dict[str, Any]
    lines: dict[str, dict[str, Any]]  # of evaluation_trajectories.jsonl, by the task's last name


def command(folder: Path, *more: str) -> list[str]:
    return [
        "method=base", "policy=idle", "env=custom", "env.factory=hostile_world:Suite",
        "evaluation.retries=0", f"run_dir={folder}", *more,
    ]  # fmt: skip


def played(folder: Path, *more: str) -> Run:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, said = said_by(command(folder, "max_lost=1", *more))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / MIB
    kept = (folder / "evaluation_trajectories.jsonl").read_text().splitlines()
    lines = [json.loads(line)["trajectory"] for line in kept]
    by_name = {line["task"].rpartition("/")[2]: line for line in lines}
    summary = json.loads((folder / "summary.json").read_text())
    return Run(code, said, memory, summary, by_name)


def said_by(arguments: list[str]) -> tuple[int, str]:
    """The exit code, and all that was printed."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = main(arguments)
    return code, text.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for runs; the suite is imported from the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent)
        yield tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def inline(place: Path) -> Run:
    return played(place / "inline")


@pytest.fixture(scope="module")
def sandboxed(place: Path) -> Run:
    more = ["env.options.anywhere=false", "env.options.worker=true"]
    own = ["sandbox=process", "sandbox.deadline=2", "sandbox.retries=0", "sandbox.workers=4"]
    return played(place / "sandboxed", *more, *own)


def check_lost(run: Run, name: str) -> None:
    line = run.lines[name]
    assert line["stop"] == "error" and line["score"] is None and not line["turns"], line
    assert line["failure"]["boundary"] in ("environment", "sandbox")
    said = line["failure"]["error"]
    assert said and len(said) <= LONGEST_ERROR and TRACEBACK not in said


@pytest.mark.parametrize("name", ANYWHERE)
def test_harm_in_this_process_fails_alone(name: str, inline: Run) -> None:
    check_lost(inline, name)


@pytest.mark.parametrize("name", IN_A_WORKER)
def test_harm_in_a_worker_fails_alone(name: str, sandboxed: Run) -> None:
    check_lost(sandboxed, name)


@pytest.mark.parametrize("name", UNNOTICED)
def test_harm_that_nobody_notices_ends_well(name: str, sandboxed: Run) -> None:
    line = sandboxed.lines[name]
    assert line["failure"] is None and line["score"]["success"], line


@pytest.mark.parametrize("where", ["inline", "sandboxed"])
def test_a_run_with_harm_in_it_ends_well(where: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(where)
    fine = len(UNNOTICED) if where == "sandboxed" else 0
    assert run.code == 0 and TRACEBACK not in run.said
    assert "\x1b" not in run.said, "what an environment says never reaches the terminal as it is"
    score = run.summary["score"]
    assert (score["n"], score["success"]) == (GOOD + fine, 1.0), "what was lost is not scored"
    assert run.memory < 512, "MiB"


def test_a_run_that_loses_too_much_says_so(place: Path) -> None:
    """As above with the usual limit on losses: no score is made of what is left."""
    code, said = said_by(command(place / "strict"))
    assert code == 2 and TRACEBACK not in said and "\x1b" not in said
    assert said.splitlines()[-1].startswith("error: ") and "max_lost=0.5" in said
    assert not (place / "strict" / "summary.json").exists()


def test_nothing_is_left_of_the_workers(sandboxed: Run) -> None:
    until = time.monotonic() + 60
    while left := [p for p in Path("/proc").glob("[0-9]*") if ours(p)]:
        assert time.monotonic() < until, left
        time.sleep(0.2)


def ours(process: Path) -> bool:
    """Whether a process was started as a worker of this suite."""
    try:
        words = (process / "cmdline").read_bytes()
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    named = b"hostile_world:Suite" in words and b"trace_bench.sandbox.worker" in words
    return named and state != "Z"
