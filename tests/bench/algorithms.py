"""The CPU time of an iteration's update by each algorithm, beside GRPO's, on the same rollouts.

    python tests/bench/algorithms.py [--repeat 11]

All in one process and in turns, forwards and backwards; the median over the turns of the ratio to
GRPO in the same turn. Rollouts, which all algorithms need alike, are not in it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playing import play
from sandboxes import in_process as suite

from trace_bench.core.protocols import TrainingJob
from trace_bench.core.store import stable_seed
from trace_bench.core.types import AgentSpec, Trajectory
from trace_bench.policies.local import LocalPolicy
from trace_bench.settings.registry import names
from trace_bench.trainers.adapters import restart
from trace_bench.trainers.algorithms import Algorithm
from trace_bench.trainers.grpo import credit
from trace_bench.trainers.job import earned
from trace_bench.trainers.local import TrainerSettings
from trace_bench.trainers.model import Learner
from trace_bench.trainers.tree import stretches
from trace_bench.trainers.update import update

MODEL = str(Path(__file__).resolve().parents[2] / "trace_bench" / "tiny" / "model")


def variants() -> Mapping[str, TrainerSettings]:
    """Every algorithm with its defaults, and GRPO with the divergence that all can have."""
    base = TrainerSettings()
    out = {
        name: replace(base, algorithm=Algorithm.offered()[name]())
        for name in names("trainer.algorithm")
    }
    out["grpo, kl"] = replace(base, algorithm=Algorithm(kl=0.01))
    return out


def rollouts(settings: TrainerSettings) -> list[Trajectory]:
    """Groups of one iteration that are not constant."""
    kept: list[Trajectory] = []
    env, policy = suite("toolsandbox", "embedded"), LocalPolicy(MODEL, batch=32)
    for number, task in enumerate(env.tasks("train")):
        seeds = [stable_seed("bench", number, i) for i in range(settings.group_size)]
        played = play(policy, env, AgentSpec(MODEL), [task] * len(seeds), seeds)
        scores = {0.0 if t.score is None else t.score.similarity for t in played}
        kept += played if len(scores) > 1 else []
        if len(kept) == settings.groups * settings.group_size:
            break
    return kept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=11)
    repeat = parser.parse_args().repeat
    torch.set_num_threads(1)
    chosen, s = variants(), TrainerSettings()
    played = rollouts(s)
    job = TrainingJob("bench", AgentSpec(MODEL), [], len(played), 0)
    learner = Learner(MODEL, s.target_modules, s.rank, s.alpha)
    ratios: dict[str, list[float]] = {name: [] for name in chosen}
    seconds = []
    for turn in range(repeat + 1):
        took = {}
        for name, how in sorted(chosen.items(), reverse=bool(turn % 2)):
            restart(learner.layers, 0)
            optimizer = torch.optim.AdamW(learner.parameters, s.learning_rate)
            started = time.process_time()
            found = credit(played, earned(played, job), job, how)
            update(learner, optimizer, [stretches(t) for t in played], found, how, turn)
            took[name] = time.process_time() - started
        if turn:  # the first round warms up
            seconds.append(took["grpo"])
            for name, value in took.items():
                ratios[name].append(value / took["grpo"])
    print(f"grpo: {statistics.median(seconds):.3f} s for {len(played)} rollouts")
    for name, found_ratios in ratios.items():
        print(f"{name:16} {statistics.median(found_ratios):.2f}")


if __name__ == "__main__":
    main()
