"""What sums of adapters with weights for each block cost: as files, and as the engine plays them.

    python tests/bench/sums.py [--tasks 64] [--adapters 5] [--rank 16]

The tiny agent with random adapters and a random gate in each block plays development tasks, each
with a sum of its own: once without files, which includes the choosing, once with every sum
written as an adapter, and once with one and the same sum for all. CPU seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models import save_adapter
from playing import play
from sandboxes import in_process

from trace_bench.core.types import AdapterRef, AgentSpec, Task
from trace_bench.policies.local import LocalPolicy
from trace_bench.policies.routing.merge import Mixture, merge
from trace_bench.policies.routing.router import make_router
from trace_bench.tiny import MODEL_FOLDER

MODEL = str(MODEL_FOLDER)


def agent_of(folder: Path, count: int, rank: int) -> AgentSpec:
    """Random adapters, and a soft gate in each of the four blocks."""
    refs = []
    for seed in range(count):
        place = folder / "adapters" / f"a{seed}" / "0001"
        place.parent.mkdir(parents=True)
        save_adapter(MODEL_FOLDER, place, seed=seed, rank=rank, scale=0.02)
        refs.append(AdapterRef(f"a{seed}@0001", str(place)))
    weights = np.random.default_rng(0).normal(size=(4, count + 1, 128), scale=0.01)
    labels = [*(ref.name for ref in refs), None]
    router = {"kind": "classifier", "labels": labels, "weights": weights.tolist(), "soft": True}
    router |= {"bias": np.zeros((4, count + 1)).tolist(), "others": 0.35}
    return AgentSpec(MODEL, adapters=tuple(refs), router=router)


def played(agent: AgentSpec, tasks: Sequence[Task], route: Sequence[str] | None) -> str:
    """CPU seconds and turns of one call in a fresh policy."""
    policy = LocalPolicy(MODEL, batch=128, threads=1)
    begin = time.process_time()
    suite = in_process("toolsandbox", "embedded")
    out = play(policy, suite, agent, tasks, range(len(tasks)), max_turns=6, route=route)
    turns = sum(len(t.turns) for t in out)
    spent = time.process_time() - begin
    policy.close()
    return f"{spent:.2f} s for {turns} turns, {1000 * spent / turns:.1f} ms each"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--adapters", type=int, default=5)
    parser.add_argument("--rank", type=int, default=16)
    given = parser.parse_args()
    suite = in_process("toolsandbox", "embedded")
    tasks = list(suite.tasks("dev"))[: given.tasks]
    with tempfile.TemporaryDirectory() as folder:
        agent = agent_of(Path(folder), given.adapters, given.rank)
        policy = LocalPolicy(MODEL, batch=1, threads=1)
        router = make_router(agent, policy)
        sums, begin = [], time.process_time()
        for task in tasks:
            first = suite.make().reset(task)
            choice = router.route(first.messages, first.tools)
            assert isinstance(choice, Mixture)
            sums.append(choice)
        spent = time.process_time() - begin
        print(f"{len({s.name for s in sums})} sums for {len(tasks)} tasks, chosen in {spent:.2f} s")
        print("without files:", played(agent, tasks, None))
        begin = time.process_time()
        written = {s.name: merge(s, agent.adapters) for s in sums}
        size = sum(
            f.stat().st_size for f in (Path(folder) / "adapters" / "merged").rglob("*.safetensors")
        )
        print(f"writing them: {time.process_time() - begin:.2f} s, {size / 1e6:.0f} MB")
        all_of = AgentSpec(MODEL, adapters=(*agent.adapters, *written.values()))
        print("with files:", played(all_of, tasks, [s.name for s in sums]))
        print("one file for all:", played(all_of, tasks, [sums[0].name] * len(tasks)))


if __name__ == "__main__":
    main()
