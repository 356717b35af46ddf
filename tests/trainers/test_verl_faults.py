"""What goes wrong while the real verl trains: environments, processes, machines."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import verl_job as jobs
from interpreter import PLAIN

from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines
from trace_bench.core.types import Task
from trace_bench.runner.lab import RunLab
from trace_bench.settings.schema import Settings
from trace_bench.trainers.verl.spec import StepFiles

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")
HERE = Path(__file__).parent


def named(name: str, beneath: int | None = None) -> list[psutil.Process]:
    """Processes of that Ray class that come from this one's children (of its parent's, which forks
    all programs where `tests/interpreter.py` runs the tests), or from `beneath`'s."""
    top = psutil.Process(beneath or (os.getppid() if PLAIN in os.environ else os.getpid()))
    return [p for p in top.children(recursive=True) if _title(p).startswith(name)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def when(ready: Callable[[], bool], then: Callable[[], object], limit: float = 600.0) -> None:
    """Does it once in the background, as soon as it is time."""

    def wait() -> None:
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if ready():
                then()
                return
            time.sleep(0.1)

    threading.Thread(target=wait, daemon=True).start()


def faulty(
    folder: Path, chosen: Settings, share: float, count: int, reward: float | None = None
) -> tuple[RunLab, list[Task]]:
    """A lab with a world that raises in that share of its episodes; the fourth task may hang.
    `reward`: of every episode that ends."""
    lab = jobs.make_lab(folder, chosen)
    text = (HERE / "verl_faults.txt").read_text()
    suite: Any = lab.generated_suite("faults", text, {"FAILING": share, "REWARD": reward})
    return lab, [suite.synthetic("", seed) for seed in range(count)]


def test_environments_break_and_hang_and_a_worker_is_killed(tmp_path: Path) -> None:
    """A fifth of the episodes raise, some of one task hang, and in the middle the process that
    plays environments is killed: training finishes, every episode counts once, failures are
    failures of the environment or of its sandbox."""
    chosen = jobs.settings(
        "budget=64",
        "trainer.gpus=2",
        "trainer.group_size=2",  # many groups lose one of two, and with it their lesson
        "trainer.groups=8",
        "sandbox=process",
        "sandbox.allow_untrusted=true",
        "sandbox.deadline=2",
        "sandbox.retries=0",
    )
    lab, tasks = faulty(tmp_path, chosen, 0.2, 4)
    ledger, killed = tmp_path / "ledger.jsonl", []

    def kill() -> None:
        for process in named("ray::AgentLoopWorkerTQ"):
            killed.append(process.pid)
            process.kill()

    when(lambda: len(read_lines(ledger)) >= 36, kill)
    agent = lab.trainer.train(jobs.job("faults", chosen, tasks), lab)
    lab.close()
    assert killed
    assert agent.adapters[-1].name == "faults@0004"
    assert jobs.once_each(tmp_path) == {f"train/faults/iter{i:04d}": 16 for i in range(4)}
    lines = read_lines(ledger)
    failed = [x["error"] for x in lines if x["error"]]
    assert {e.partition(":")[0] for e in failed} <= {"environment", "sandbox"}
    assert any("the environment broke" in e for e in failed)
    assert any(e.startswith("sandbox") for e in failed)
    assert 8 <= len(failed) <= 40
    assert sum(m["failures"] for m in jobs.metrics(tmp_path)) == len(failed)
    assert StepFiles(tmp_path / "adapters/faults/verl").starts() == 2


def test_a_training_without_a_lesson_makes_no_adapter(tmp_path: Path, capsys: Any) -> None:
    """All episodes earn the same: they are counted, and training goes on, but no step has a
    gradient. In float32 the mean of eight times 2/3 is another number."""
    chosen = jobs.settings(
        "budget=32",
        "trainer.groups=2",
        "sandbox=process",
        "sandbox.allow_untrusted=true",
    )
    lab, tasks = faulty(tmp_path, chosen, 0.0, 3, reward=2 / 3)
    job = jobs.job("faults", chosen, tasks)
    assert lab.trainer.train(job, lab) is job.agent
    lab.close()
    assert jobs.once_each(tmp_path) == {f"train/faults/iter{i:04d}": 16 for i in range(2)}
    found = jobs.metrics(tmp_path)
    assert len(found) == 2 and not any(m["failures"] for m in found)
    assert {(m["grad_norm"], m["steps"]) for m in found} == {(0.0, 0)}
    why = "in every group all rewards were equal (mean reward: 0.667)"
    assert f"faults: no optimizer step, so there is no adapter: {why}" in capsys.readouterr().err
    ends = [m for m in read_lines(tmp_path / "metrics.jsonl") if m["phase"] == "trained"]
    assert [m["adapter"] for m in ends] == [None]
    assert vars(lab.training) | {"apart": None} == {
        "groups": 4, "constant": 4, "steps": 0, "apart": None, "alarms": 0, "update_norm": None,
    }  # fmt: skip


def test_lost_episodes_are_played_again_as_if_nothing_was_learned_from_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The world goes in the second iteration: the run stops. It is started with the loss allowed,
    and cut off when verl has learned from it and saved that; then as at first, in a world that is
    whole again."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    flag, folder = tmp_path / "flag", tmp_path / "run"
    world = ["env=custom", "env.factory=verl_outage:Outage", f"env.options.flag={flag}"]
    chosen = jobs.settings("budget=48", "trainer.groups=2", *world)
    ledger, call = folder / "ledger.jsonl", "train/grpo/iter{:04d}"

    def start(max_lost: float, stop_at: int | None = None) -> Any:
        lab = jobs.make_lab(folder, chosen, max_lost=max_lost)

        def checkpoint(agent: Any) -> None:
            if stop_at is not None and agent.adapters[-1].name == f"grpo@{stop_at:04d}":
                raise KeyboardInterrupt

        monkeypatch.setattr(lab, "checkpoint", checkpoint)
        try:
            tasks = list(lab.suite.tasks("train"))[:8]
            return lab, lab.trainer.train(jobs.job("grpo", chosen, tasks), lab)
        finally:
            lab.close()

    flag.write_text("16")
    with pytest.raises(UserError, match=r"iter0001: 9 of 16 episodes .* the lost episodes are run"):
        start(0.5)
    flag.write_text("0")
    with pytest.raises(KeyboardInterrupt):
        start(1.0, stop_at=2)
    lost = [x for x in read_lines(ledger) if x["error"]]
    assert {x["call"] for x in lost} == {call.format(1)} and len(lost) == 16
    before = [x for x in read_lines(ledger) if not x["error"]]
    flag.unlink()
    lab, agent = start(0.5)
    assert agent.adapters[-1].name == "grpo@0003"
    assert jobs.once_each(folder) == {call.format(i): 16 for i in range(3)}
    after = read_lines(ledger)
    assert after[:16] == before and not any(x["error"] for x in after)
    last = {m["adapter"]: m for m in jobs.metrics(folder)}
    assert [m["failures"] for m in last.values()] == [0, 0, 0]
    assert sum(m["steps"] for m in last.values()) == 2 * sum(
        m["constant_share"] < 1 for m in last.values()
    )
    assert lab.training.steps and lab.training.groups == 6


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """The whole program is killed in the middle of an iteration; nothing of it is left running,
    and the same command finishes with every episode once."""
    folder = tmp_path / "run"
    plain = os.environ.get(PLAIN, sys.executable)  # its children are beneath it
    command = ["-m", "trace_bench", *jobs.CPU, "budget=96", "checkpoints=[]"]
    command += ["evaluation.limit=4", f"run_dir={folder}"]
    nothing = subprocess.DEVNULL
    first = subprocess.Popen([plain, *command], stdout=nothing, stderr=nothing)
    try:
        end = time.monotonic() + 600
        while len(read_lines(folder / "ledger.jsonl")) < 40:
            assert time.monotonic() < end and first.poll() is None
            time.sleep(0.05)
        beneath = psutil.Process(first.pid).children(recursive=True)
    finally:
        first.kill()
        first.wait()
    before = read_lines(folder / "ledger.jsonl")
    _, alive = psutil.wait_procs(beneath, timeout=60)  # a machine may be busy
    assert not alive, [_title(p) for p in alive]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    after = read_lines(folder / "ledger.jsonl")
    assert after[: len(before)] == before
    assert jobs.once_each(folder) == {f"train/grpo/iter{i:04d}": 32 for i in range(3)}
    assert (folder / "adapters/grpo/0003/adapter_model.safetensors").exists()


def test_settings_that_verl_refuses_cost_nothing(tmp_path: Path) -> None:
    """verl's own words, before anything is played."""
    override = 'trainer.verl=["actor_rollout_ref.actor.no_such_key=1"]'
    done = subprocess.run(
        [sys.executable, "-m", "trace_bench", *jobs.CPU, override, f"run_dir={tmp_path / 'r'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "no_such_key" in done.stderr and "Change the setting `trainer.verl`" in done.stderr
    assert not (tmp_path / "r").exists()
