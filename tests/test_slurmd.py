"""containers/slurm.sbatch under Slurm's own daemons: two machines of eight GPUs, which are two
slurmd on 127.0.0.1 and links to /dev/null. The interpreter is the stand-in of test_slurm.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_slurm import PYTHON, SCRIPT, free

MISSING = [n for n in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(n) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no program {MISSING}"),
]
CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={here}/munge.socket
StateSaveLocation={here}
SlurmdSpoolDir={here}/%n
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/%n.pid
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
FirstJobId={job}
NodeName=127.0.0.1 NodeHostname=one NodeAddr=127.0.0.1 Port={one} CPUs=6 Gres=gpu:8
NodeName=127.0.0.2 NodeHostname=two NodeAddr=127.0.0.1 Port={two} CPUs=6 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES
"""
STEP = """#!/bin/sh
echo $$ $SLURM_STEP_GPUS $SLURM_CPUS_ON_NODE >>steps
exec ./stand-in "$@"
"""


def until(answer: Callable[[], Any], otherwise: str) -> None:
    end = time.monotonic() + 60
    while not answer():
        assert time.monotonic() < end, otherwise
        time.sleep(0.2)


def runs(pid: str) -> bool:
    """Whether the process has not ended; one that ended and that nobody reaped has no command line
    (srun kills a step at once, and where process 1 is no init, its orphans stay in the table)."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A cluster: slurm(PROGRAM, *options, **environment) is what that program prints."""
    for name, text in (("stand-in", PYTHON), ("python", STEP), ("munge.key", os.urandom(64).hex())):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    (tmp_path / "seen").touch()
    for gpu in range(8):
        (tmp_path / f"gpu{gpu}").symlink_to("/dev/null")
    (tmp_path / "gres.conf").write_text(f"Name=gpu File={tmp_path}/gpu[0-7]\n")
    host, conf = socket.gethostname().partition(".")[0], tmp_path / "slurm.conf"
    ports = {name: free() for name in ("controller", "one", "two")}
    conf.write_text(
        CONF.format(host=host, user=os.getuid(), here=tmp_path, job=os.getpid(), **ports)
    )
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))}
    around = {**outer, "SLURM_CONF": str(conf), "SEEN": str(tmp_path / "seen")}
    files = [f"--{n}-file={tmp_path}/munge.{n}" for n in ("key", "log", "pid", "seed")]
    munged = ["munged", "--foreground", "--force", f"--socket={tmp_path}/munge.socket", *files]
    slurmd = ["slurmd", "-D", "-f", str(conf), "-N"]

    def call(*words: str, **env: str) -> str:
        done = subprocess.run(
            words, env={**around, **env}, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    daemons = []
    try:
        for words in (munged, ["slurmctld", "-D"], [*slurmd, "127.0.0.1"], [*slurmd, "127.0.0.2"]):
            with (tmp_path / "log").open("a") as log:
                daemons.append(subprocess.Popen(words, env=around, stdout=log, stderr=log))
            until((tmp_path / "munge.socket").exists, "munged opens no socket")
        until(lambda: call("sinfo", "-h", "-o", "%t") == "idle", "the machines do not come up")
        yield call
        call("scancel", "--name=trace_bench")
        until(lambda: not call("squeue", "-h"), "the job does not end")
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)


@pytest.mark.parametrize(("machines", "code"), [(1, "143:0"), (2, "3:0")])
def test_server_and_training_have_gpus_of_their_own(
    slurm: Callable[..., str], tmp_path: Path, machines: int, code: str
) -> None:
    """On one machine with a job that is told to end, on two with one whose training fails."""
    env = {"PYTHON": "./python", "SERVER": "--model M", "PORT": free(), "PATIENCE": "30"}
    env |= {"LASTS": "60"} if machines == 1 else {"CODE": "3"}
    job = slurm("sbatch", "--parsable", f"--nodes={machines}", str(SCRIPT), "method=grpo", **env)
    if machines == 1:
        until(lambda: "method=grpo" in (tmp_path / "seen").read_text(), "training does not start")
        slurm("scancel", "--batch", "--signal=TERM", job)
    until(lambda: not slurm("squeue", "-h"), "the job does not end")
    assert f" ExitCode={code}" in slurm("scontrol", "show", "job", job)
    calls = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    hosts = ["127.0.0.1", "127.0.0.2"][:machines]
    expected = [("vllm.entrypoints.openai.api_server", host, "4,5,6,7") for host in hosts]
    expected += [("ray.scripts.scripts", host, "0,1,2,3") for host in hosts if machines > 1]
    expected.append(("trace_bench", "127.0.0.1", "0,1,2,3"))
    assert sorted((c["words"][1], c["nodes"], c["gpus"]) for c in calls) == sorted(expected)
    steps = [line.split() for line in (tmp_path / "steps").read_text().splitlines()]
    given = {(gpus, cpus) for _, gpus, cpus in steps}
    assert given == {("0,1,2,3,4,5,6,7", "6")}, "Slurm gives each step all of a machine"
    assert not [pid for pid, *_ in steps if runs(pid)], "a step has not ended"
    assert (tmp_path / f"slurm-{job}.out").exists()
