"""containers/slurm.sbatch with stand-ins for Slurm's programs and for the interpreter, which write
down how they are called; bash runs the script itself. As Slurm does, the one for srun shows every
step all GPUs of the job, whatever --export says, and takes the job's number of tasks for a step
that names none. test_slurmd.py has Slurm's own daemons."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT

SCRIPT = ROOT / "containers" / "slurm.sbatch"
SCONTROL = """#!/bin/sh
printf '%s\\n' $HOSTS
"""
SRUN = f"""#!{sys.executable}
import os, sys
options = [w for w in sys.argv[1:] if w.startswith("--")]
command = sys.argv[1 + next(n for n, w in enumerate(sys.argv[1:]) if not w.startswith("--")):]
exported = [w.partition("=")[2] for w in sys.argv[1:] if w.startswith("--export=")][0]
name, _, value = exported.partition(",")[2].partition("=")
nodes = [w.partition("=")[2] for w in sys.argv[1:] if w.startswith("--nodelist=")][0]
tasks = [w.partition("=")[2] for w in sys.argv[1:] if w.startswith("--ntasks=")]
tasks += [os.environ["SLURM_NTASKS"]]
assert int(tasks[0]) == len(nodes.split(",")), "one task a machine"
slurms = {{"SLURMD_NODENAME": nodes, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}}
os.execvpe(command[0], command, {{**os.environ, name: value, **slurms}})
"""
PYTHON = f"""#!{sys.executable}
import json, os, socket, sys, time
words = sys.argv[1:]
seen = {{"words": words, "nodes": os.environ["SLURMD_NODENAME"]}}
seen["gpus"] = os.environ["CUDA_VISIBLE_DEVICES"]
seen["sampler"] = os.environ.get("VLLM_USE_FLASHINFER_SAMPLER")
with open(os.environ["SEEN"], "a") as file:
    file.write(json.dumps(seen) + "\\n")
if words[1] == "trace_bench":
    several, end = any("nnodes" in w for w in words), time.monotonic() + 20
    while several and "--address=" not in open(os.environ["SEEN"]).read():
        assert time.monotonic() < end, "the second machine does not join"
        time.sleep(0.05)
    time.sleep(int(os.environ.get("LASTS", "0")))
    sys.exit(int(os.environ.get("CODE", "0")))
if os.environ.get("BROKEN"):
    sys.exit(1)
held = []
port = [w.partition("=")[2] for w in words if w.startswith("--port=")]
port += [words[n + 1] for n, w in enumerate(words) if w == "--port"]
for node in seen["nodes"].split(",") if port else []:  # which may be one address
    held.append(socket.create_server((node, int(port[0])), reuse_port=True))
again = open(os.environ["SEEN"]).read().count(words[1]) > 1
sys.exit(time.sleep(1) or 1) if os.environ.get("FALLS") and not again else time.sleep(60)
"""


def submit(
    folder: Path, *settings: str, hosts: str = "localhost", **env: str
) -> tuple[Any, list[Any]]:
    """(the finished job, how the interpreter was called, in order)."""
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("python", PYTHON)):
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    seen = folder / "seen"
    seen.unlink(missing_ok=True)
    around = {
        "PATH": f"{folder}:{os.environ['PATH']}", "HOSTS": hosts, "SEEN": str(seen),
        "SLURM_JOB_NODELIST": "any", "SLURM_JOB_ID": str(os.getpid()), "PYTHON": "python",
        "SLURM_NTASKS": str(len(hosts.split())), "PATIENCE": "20",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(SCRIPT), *settings], env={**around, **env}, cwd=folder, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    return done, [json.loads(line) for line in seen.read_text().splitlines()]


def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return str(held.getsockname()[1])


def test_one_machine_needs_no_cluster(tmp_path: Path) -> None:
    done, (run,) = submit(tmp_path, "experiment=paper_tau2", "run_dir='my runs'", CODE="3")
    assert done.returncode == 3, done.stderr
    words = ["-m", "trace_bench", "experiment=paper_tau2", "run_dir='my runs'"]
    assert run == {"words": words, "nodes": "localhost", "gpus": "0,1,2,3", "sampler": None}


def test_two_machines_serve_and_train_on_gpus_of_their_own(tmp_path: Path) -> None:
    port = free()
    done, seen = submit(
        tmp_path, "trainer=verl_30b_nodes", hosts="localhost 127.0.0.1", PORT=port,
        SERVER="--model M --max-model-len 32000",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    server, head, *rest = seen
    (run,) = [one for one in rest if one["words"][1] == "trace_bench"]
    assert server["gpus"] == "4,5,6,7" and server["nodes"] == "localhost,127.0.0.1"
    assert server["sampler"] == "0"
    command = "-m vllm.entrypoints.openai.api_server --model M --max-model-len 32000"
    assert server["words"][:6] == command.split()
    assert head["words"][1:4] == ["ray.scripts.scripts", "start", "--block"]
    assert "--num-gpus=4" in head["words"] and head["nodes"] == "localhost"
    ray = 20000 + os.getpid() % 20000
    urls = ",".join(f"http://{host}:{port}/v1" for host in ("localhost", "127.0.0.1"))
    assert f"policy.base_url=[{urls}]" in run["words"]
    assert run["words"][-2:] == ["trainer.nnodes=2", f"trainer.ray_address=localhost:{ray}"]
    joined = [one for one in rest if f"--address=localhost:{ray}" in one["words"]]
    assert {(one["nodes"], one["gpus"]) for one in joined} == {("127.0.0.1", "0,1,2,3")}
    assert not list(tmp_path.glob(".ray-token*")), "the token does not stay"


def test_a_server_that_ends_ends_the_job(tmp_path: Path) -> None:
    done, seen = submit(tmp_path, PORT=free(), SERVER="--model M", BROKEN="1")
    assert done.returncode == 1 and "nothing answers at localhost:" in done.stderr
    assert [one["words"][1] for one in seen] == ["vllm.entrypoints.openai.api_server"]


def test_a_server_that_falls_is_started_again(tmp_path: Path) -> None:
    done, seen = submit(tmp_path, PORT=free(), SERVER="--model M", FALLS="1", LASTS="9")
    assert done.returncode == 0 and "is started again" in done.stderr, done.stderr
    servers = [one for one in seen if one["words"][1] == "vllm.entrypoints.openai.api_server"]
    assert len(servers) == 2 and servers[0] == servers[1]
    assert not list(tmp_path.glob(".answered*"))


@pytest.mark.parametrize("task", [0, 1, 2])
def test_a_sweep_is_an_array_of_jobs(tmp_path: Path, task: int) -> None:
    (tmp_path / "runs.txt").write_text("method=grpo seed=0\nmethod=trace 'run_dir=a b'\n")
    if task == 2:
        with pytest.raises(FileNotFoundError):  # nothing was started
            submit(tmp_path, RUNS="runs.txt", SLURM_ARRAY_TASK_ID="2")
        return
    done, (run,) = submit(tmp_path, "env=tau2", RUNS="runs.txt", SLURM_ARRAY_TASK_ID=str(task))
    assert done.returncode == 0, done.stderr
    words = [["method=grpo", "seed=0"], ["method=trace", "run_dir=a b"]][task]
    assert run["words"] == ["-m", "trace_bench", "env=tau2", *words]
