"""verl over two Ray nodes, which both stand on this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import verl_job as jobs
from interpreter import PLAIN
from standard_servers import free_port

from trace_bench.core.store import read_lines
from trace_bench.trainers.verl.spec import JobSpec

pytestmark = pytest.mark.verl
pytest.importorskip("verl", reason="verl is not installed")

# Each a process of its own, as on a machine of its own.
PYTHON = os.environ.get(PLAIN, sys.executable)
RAY = [PYTHON, "-m", "ray.scripts.scripts"]


class Cluster:
    """Nodes as a person starts them, one command each."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.folder = folder
        # Nodes and drivers of a cluster show one another the same token.
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, *which: str) -> subprocess.Popen[bytes]:
        command = [*RAY, "start", *which, "--num-gpus=1", "--num-cpus=20", "--block"]
        env = {**os.environ, **self.token, "RAY_USAGE_STATS_ENABLED": "0"}
        with (self.folder / f"node-{len(self.nodes)}.log").open("wb") as log:
            node = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.nodes.append(node)
        return node

    def head(self) -> None:
        """Ray gives a head 30 s to start, too few on a busy machine: it is started again."""
        port = self.address.partition(":")[2]
        for _ in range(5):
            where = ("--node-ip-address=127.0.0.1", f"--port={port}")
            node = self.start("--head", *where, "--include-dashboard=false")
            log = self.folder / f"node-{len(self.nodes) - 1}.log"
            end = time.monotonic() + 120
            while time.monotonic() < end and node.poll() is None:
                if "Ray runtime started" in log.read_text():
                    return
                time.sleep(0.2)
            kill(node)
        raise AssertionError(log.read_text())

    def join(self) -> subprocess.Popen[bytes]:
        return self.start(f"--address={self.address}")

    def stop(self) -> None:
        for node in self.nodes:
            kill(node)


def kill(node: subprocess.Popen[bytes]) -> None:
    """The node as when its machine is switched off."""
    try:
        beneath = psutil.Process(node.pid).children(recursive=True)
    except psutil.Error:
        beneath = []
    for process in [*beneath, psutil.Process(node.pid)] if node.poll() is None else beneath:
        with suppress(psutil.Error):
            process.kill()
    node.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    nodes = Cluster(tmp_path)
    try:
        nodes.head()
        yield nodes
    finally:
        nodes.stop()


def test_two_nodes_one_of_which_goes_down(cluster: Cluster, tmp_path: Path) -> None:
    """Training stops when a node is lost, and says so; with a new node the same command goes on,
    every episode once, and its steps, with a divergence from the base model, are the local
    trainer's."""
    lost = cluster.join()
    folder = tmp_path / "run"
    command = [PYTHON, "-m", "trace_bench", *jobs.CPU, "budget=64", "checkpoints=[]"]
    command += ["trainer.nnodes=2", f"trainer.ray_address={cluster.address}", "evaluation.limit=4"]
    recipe = ["trainer.algorithm.kl=0.01", "trainer.restarts=0"]
    command += [*recipe, f"run_dir={folder}"]
    env = {**os.environ, **cluster.token}
    with (tmp_path / "out.log").open("wb") as out:
        first = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        end = time.monotonic() + 480
        while len(read_lines(folder / "ledger.jsonl")) < 40:
            assert time.monotonic() < end, (tmp_path / "out.log").read_text()[-3000:]
            assert first.poll() is None, (tmp_path / "out.log").read_text()[-3000:]
            time.sleep(0.05)
        kill(lost)
        assert first.wait(90) == 2
    finally:
        first.kill()
    said = (tmp_path / "out.log").read_text()
    assert "verl stopped" in said and "The same command goes on" in said
    before = read_lines(folder / "ledger.jsonl")
    cluster.join()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_lines(folder / "ledger.jsonl")[: len(before)] == before
    calls = jobs.once_each(folder)
    assert calls == {f"train/grpo/iter{i:04d}": 32 for i in range(2)}
    chosen = jobs.settings("budget=64", *recipe)
    tasks = jobs.suite_of(chosen).tasks("train")
    seed = JobSpec.read(folder / "adapters/grpo/verl").job_seed
    job = replace(jobs.job("grpo", chosen, tasks), seed=seed)
    steps, _ = jobs.local_steps(chosen, job, [jobs.played(folder, call) for call in sorted(calls)])
    lines = {line["adapter"]: line for line in jobs.metrics(folder)}
    for line, step in zip(lines.values(), steps, strict=True):
        assert line["grad_norm"] == pytest.approx(step.grad_norm / 2, rel=2e-3)
