"""A step's gradient by several processes (trainers/passes.py). The whole run: test_kills.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# In an interpreter of its own: where there is a GPU, no test before may have computed a gradient.
PROGRAM = """
import os, sys
import numpy as np
import torch
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from models import save_model
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.trainers.local import LocalTrainer, TrainerSettings
from trace_bench.trainers.passes import Forks, Part
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
trainers = [LocalTrainer(settings, RunContext(threads=1, workers=n)) for n in (1, 2, 3)]
learners = [trainer.learner(model) for trainer in trainers]
found = []
for trainer, learner in reversed(list(zip(trainers, learners, strict=True))):
    for parameter, like in zip(learner.parameters, learners[0].parameters, strict=True):
        parameter.data.copy_(like.data + 0.01)  # the forks have not seen this
    how = trainer.divided()["passes"]
    assert isinstance(how, Forks) == (trainer is not trainers[0])
    told = list(how(learner, parts, settings))
    gradients = [p.grad.numpy().tobytes() for p in learner.parameters]
    found.append((gradients, [(t.loss, t.clipped, t.kl) for t in told]))
    found[-1] += ([x.tobytes() for t in told for x in t.logprobs],)
assert found[0] == found[1] == found[2]
assert len(set(found[0][1])) == 5 and any(map(any, found[0][0]))
os.kill(trainers[1]._forks._processes[1].pid, 9)
try:
    list(trainers[1]._forks(learners[1], parts, settings))
except UserError as error:
    print(error)
"""


def test_any_number_of_processes_gives_the_same_gradient(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TESTS)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "ended by itself (-9; -9: killed" in done.stdout
