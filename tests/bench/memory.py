"""Peak memory and time of a training pass over its tokens: both should grow in proportion.

    python tests/bench/memory.py [--model FOLDER] [--dtype auto] [--most 8192] [--memory 1000]

Each line is a process of its own: forward and backward over conversations of 256 tokens that make
up so many, and over one conversation of so many. `peak` is resident memory above that of the loaded
model; with a small `--memory` (GB, `trainer.memory`) it stays bounded while tokens grow. Columns
`per token` are the proof: constant if the growth is in proportion.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from trace_bench.policies.loading import load_tokenizer
from trace_bench.trainers.adapters import restart
from trace_bench.trainers.algorithms import LINEAR
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import Tokens, build, parts

SHIPPED = Path(__file__).parents[2] / "trace_bench" / "tiny" / "model"


def one(options: argparse.Namespace, length: int) -> None:
    """Prints seconds and peak bytes of a pass over `options.tokens` tokens."""
    torch.set_num_threads(1)
    memory = options.memory * 1e9
    learner = Learner(str(options.model), LINEAR, 16, 32.0, "cpu", options.dtype, memory)
    restart(learner.layers, 0)
    words = len(load_tokenizer(options.model))
    random = np.random.default_rng(0)
    batch = []
    for _ in range(options.tokens // length):
        ids = random.integers(0, words, length)
        sampled = np.arange(length // 2, length, 2)
        batch.append(Tokens(ids, sampled, np.zeros(len(sampled), np.float32)))
    assert learner.memory_budget.node > 0  # measured before the clock starts
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    number = 0
    for part in parts(batch, 10**9, learner.memory_budget):
        torch.autograd.backward(learner.logprobs(build(part)).sum())
        number += 1
    seconds = time.process_time() - started
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "parts": number}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=SHIPPED)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--most", type=int, default=8192)
    parser.add_argument("--memory", type=float, default=1000.0)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tokens is not None:
        one(options, options.length)
        return
    print("conversations  tokens  parts  CPU s  ms per token  peak MB  kB per token")
    for single in (False, True):
        for tokens in [2**n for n in range(10, 20) if 2**n <= options.most]:
            length = tokens if single else 256
            own = ["--tokens", str(tokens), "--length", str(length)]
            done = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], *own], capture_output=True, text=True
            )
            if done.returncode != 0:
                raise SystemExit(done.stderr[-2000:])
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{tokens // length:13d} {tokens:7d} {found['parts']:6d} {found['seconds']:6.2f} "
                f"{1e3 * found['seconds'] / tokens:13.2f} {found['peak'] / 1e6:8.0f} "
                f"{found['peak'] / tokens / 1e3:13.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
