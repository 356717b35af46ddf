"""A step's gradient by several processes (trainers/passes.py). A run: runner/test_kills.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.settings.compose import compose

TESTS = Path(__file__).parents[1]
# In an interpreter of its own: where there is a GPU, no test before may have computed a gradient.
PROGRAM = """
import multiprocessing, os, sys
from dataclasses import replace
import numpy as np
import torch
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from models import save_model
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.trainers.local import LocalTrainer, TrainerSettings
from trace_bench.trainers.passes import Part, passing
from trace_bench.trainers.tree import Tokens

model, settings = str(save_model(Path("model"))), TrainerSettings()
rng = np.random.default_rng(0)

def part():
    each = []
    for length in (20, 30, 25):
        ids = rng.integers(0, 200, length)
        sampled = np.arange(5, length, 2)
        each.append(Tokens(ids, sampled, rng.normal(-3, 1, len(sampled)).astype("float32")))
    count = sum(len(s.sampled) for s in each)
    return Part(each, torch.randn(count), torch.full((count,), 1 / count), False)

parts = [part() for _ in range(5)]
learner = LocalTrainer(settings, RunContext(threads=1)).learner(model)
found, said = [], []
for workers in (3, 2, 1):
    with passing(learner, settings, workers, said.append) as passes:
        with torch.no_grad():
            for n, parameter in enumerate(learner.parameters):
                parameter.fill_(0.01 * (n % 5))  # after the forks
                parameter.grad = None
        told = list(passes(parts))
    gradients = [p.grad.numpy().tobytes() for p in learner.parameters]
    found.append((gradients, [(t.loss, t.clipped, t.kl) for t in told]))
    found[-1] += ([x.tobytes() for t in told for x in t.logprobs],)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.zero_()
assert not said and not multiprocessing.active_children()
assert found[0] == found[1] == found[2]
assert len(set(found[0][1])) == 5 and any(map(any, found[0][0]))

with passing(learner, settings, 2, print) as passes:
    os.kill(multiprocessing.active_children()[1].pid, 9)
    try:
        list(passes(parts))
    except UserError as error:
        print(error)
broken = [replace(each, weights=each.weights[1:]) for each in parts]
with passing(learner, settings, 2, print) as passes:
    try:
        list(passes(broken))
    except RuntimeError as error:
        print(str(error).splitlines()[0])
assert not multiprocessing.active_children()
"""


def test_any_number_of_processes_gives_the_same_gradient(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TESTS)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    killed, raised = done.stdout.splitlines()
    assert "ended by itself (-9; -9: killed" in killed
    assert raised == "in a process of policy.workers:"


def test_forks_have_one_thread() -> None:
    with pytest.raises(UserError, match=r"policy.threads=2 was given. Set one of them to 1"):
        compose(["policy.shards=2", "policy.workers=2", "policy.threads=2"])
