"""A job of the real verl in which everything goes wrong, and the same command goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import verl_job as jobs
from interpreter import PLAIN

from trace_bench.core.store import read_lines
from trace_bench.core.types import Task
from trace_bench.trainers.job import earned
from trace_bench.trainers.verl.spec import JobSpec, StepFiles

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

HERE = Path(__file__).parent
RATE = 0.001
LIMIT = 1200.0  # seconds for a start of the job, on a machine with other work


def named(name: str) -> list[psutil.Process]:
    """Processes of that Ray class that come from this one's children, or from its parent's, which
    forks all programs where `tests/interpreter.py` runs the tests."""
    top = psutil.Process(os.getppid() if PLAIN in os.environ else os.getpid())
    return [p for p in top.children(recursive=True) if _title(p).startswith(name)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def when(ready: Callable[[], bool], then: Callable[[], object], limit: float = LIMIT) -> None:
    """Does it once in the background, as soon as it is time."""

    def wait() -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if ready():
                then()
                return
            time.sleep(0.1)

    threading.Thread(target=wait, daemon=True).start()


class Job:
    """The command of a run, whose world breaks while `outage` is there."""

    def __init__(self, place: Path) -> None:
        self.outage, self.folder, self.place = place / "outage", place / "run", place
        world = ["env=custom", "env.factory=verl_world:World", f"env.options.folder={place}"]
        world += ["env.options.failing=0.1", "env.options.hangs=true"]
        world += ["sandbox=process", "sandbox.allow_untrusted=true", "sandbox.deadline=2"]
        world += ["sandbox.retries=0", "evaluation.limit=4", "evaluation.yardsticks=false"]
        recipe = ["budget=160", "trainer.groups=4", "trainer.group_size=4", "trainer.gpus=2"]
        recipe += ["trainer.resample=2", "trainer.algorithm=dapo"]
        recipe += [f"trainer.learning_rate={RATE}", "checkpoints=[]", f"run_dir={self.folder}"]
        self.words = ["-m", "trace_bench", *jobs.CPU, *world, *recipe]

    def start(self, *more: str, python: str = sys.executable) -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent}:{HERE.parents[1]}"}
        out = (self.place / "out.log").open("w+")
        # Sandboxes look for the world in the folder where the command was given.
        return subprocess.Popen(
            [python, *self.words, *more], cwd=HERE, stdout=out, stderr=out, env=env, text=True
        )

    def said(self) -> str:
        return (self.place / "out.log").read_text()

    @property
    def ledger(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "ledger.jsonl")

    @property
    def verl(self) -> Path:
        return self.folder / "adapters/grpo/verl"


def test_a_job_goes_on_after_every_kind_of_loss(tmp_path: Path) -> None:
    """Dynamic sampling by DAPO, in a world in which a tenth of the episodes raise and some hang.

    1. The world goes: the run stops. 2. It is started with the loss allowed, and the whole program
    is killed when verl has learned from that and saved it: nothing of it is left running. 3. The
    world is whole again; the process that plays is killed, and verl started again. Every episode
    is in the ledger once, failures are those of the world, and the course of tasks follows from
    the rewards that are in it."""
    job = Job(tmp_path)
    steps = StepFiles(job.verl)
    first = job.start("max_lost=0.9")  # of four episodes, three are soon lost by chance
    when(lambda: steps.saved() >= 1, job.outage.touch)
    assert first.wait(LIMIT) == 2, job.said()
    assert "the lost episodes are run" in job.said()
    before, saved = [x for x in job.ledger if not x["error"]], steps.saved()
    assert saved >= 1

    # Not forked: its processes are beneath it, and nobody else ends them.
    second = job.start("max_lost=1", python=os.environ.get(PLAIN, sys.executable))
    try:
        end = time.monotonic() + LIMIT
        while steps.saved() <= saved:
            assert time.monotonic() < end and second.poll() is None, job.said()
            time.sleep(0.05)
        beneath = psutil.Process(second.pid).children(recursive=True)
    finally:
        second.kill()
        second.wait()
    _, alive = psutil.wait_procs(beneath, timeout=240)  # a machine may be busy
    assert not alive, [_title(p) for p in alive]

    job.outage.unlink()
    killed: list[psutil.Process] = []
    third = job.start("max_lost=0.9")

    def kill() -> None:
        killed.extend(named("ray::AgentLoopWorkerTQ"))
        for process in killed:
            process.kill()

    done = len(before) + 8
    when(lambda: sum(not x["error"] for x in job.ledger) >= done, kill)
    assert third.wait(LIMIT) == 0, job.said()
    assert killed and "started again from its last checkpoint" in job.said()

    ledger, calls = job.ledger, followed(job)
    assert [x for x in ledger if not x["error"]][: len(before)] == before
    assert {c: n for c, n in jobs.once_each(job.folder).items() if c in calls} == calls
    failed = [x["error"] for x in ledger if x["error"]]
    assert {e.partition(":")[0] for e in failed} <= {"environment", "sandbox"}
    assert any("the environment broke" in e for e in failed)
    assert any("/again" in call for call in calls) and 152 <= sum(calls.values()) <= 160
    last = {m["adapter"]: m for m in jobs.metrics(job.folder)}
    lines = [last[f"grpo@{n:04d}"] for n in range(1, len(last) + 1)]
    assert sum(m["failures"] for m in lines) == len(failed)
    spent = [m["spent"] for m in lines]
    assert spent[-1] == sum(calls.values()) and spent == sorted(set(spent))
    rates = [RATE * (1 - done / 160) for done in (0, *spent[:-1])]
    assert [m["learning_rate"] for m in lines] == pytest.approx(rates)
    told = {n: steps.of(n) for n in range(1, len(lines) + 1)}
    used = {n: line["actor/lr"] for n, line in told.items() if line is not None}
    assert len(used) >= 2 and used == {n: pytest.approx(rates[n - 1]) for n in used}
    assert all(m["steps"] in (2, None) for m in lines if m["constant_share"] < 1)
    assert (job.folder / f"adapters/grpo/{len(lines):04d}/adapter_model.safetensors").exists()


def followed(job: Job) -> dict[str, int]:
    """Episodes by call that the ledger must have by the rewards that it has, each of its task."""
    spec = JobSpec.read(job.verl)
    tasks = list(jobs.suite_of(jobs.settings()).tasks("train"))
    course, calls = spec.course(tasks), dict[str, int]()

    def play(call: str, groups: Sequence[Task]) -> list[float]:
        size, episodes = spec.trainer.group_size, jobs.played(job.folder, call)
        calls[call] = len(episodes)
        assert [e.task for e in episodes] == [t.id for t in groups for _ in range(size)]
        return earned(episodes, spec)

    iteration = 0
    while course.iterations_left():
        course.iteration(spec.call(iteration), play)
        iteration += 1
    return calls
