"""What a sandbox costs: episodes/s and steps/s inline, in a process and in Docker, side by side.

    python tests/bench/sandbox.py [--kinds inline process docker] [--live 1 16 256] [--seconds 3]
    python tests/bench/sandbox.py --agent tiny --live 64    the real tiny model acts

The scripted agent replays reference trajectories, so nearly all time is the environment's and the
sandbox's. Kinds take turns, three rounds each, and the median counts; the first episodes of each,
in which it imports what it needs, are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playing import play
from sandboxes import chosen, in_sandbox

from trace_bench.core.protocols import Policy
from trace_bench.core.types import AgentSpec, Task
from trace_bench.policies.scripted import ReferencePolicy
from trace_bench.sandbox.engine import Sandbox

ROUNDS = 3


def policy_of(agent: str, suite: Any, live: int) -> tuple[Policy, AgentSpec]:
    if agent == "tiny":
        from trace_bench.policies.local import LocalPolicy
        from trace_bench.tiny import MODEL_FOLDER

        path = str(MODEL_FOLDER)
        return LocalPolicy(path, batch=live, threads=1), AgentSpec(path)
    policy = ReferencePolicy(suite)
    policy.capacity = live
    return policy, AgentSpec("reference")


def measure(
    suite: Any, tasks: list[Task], agent: str, live: int, seconds: float
) -> tuple[float, float]:
    """(episodes/s, steps/s) over at least `seconds`."""
    policy, spec = policy_of(agent, suite, live)
    count = max(live, 16 if live == 1 else 256)
    chosen = [tasks[i % len(tasks)] for i in range(count)]
    episodes = steps = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        played = play(policy, suite, spec, chosen, range(count), max_turns=30)
        lost = [t for t in played if t.failure]
        assert not lost, lost[0].failure
        episodes += len(played)
        steps += sum(len(t.turns) for t in played)
    passed = time.perf_counter() - began
    policy.close()
    return episodes / passed, steps / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["inline", "process", "docker"])
    parser.add_argument("--live", nargs="+", type=int, default=[1, 16, 256])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--agent", choices=["reference", "tiny"], default="reference")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--env", nargs=2, default=["toolsandbox", "embedded"])
    parser.add_argument("--split", default="dev")
    given = parser.parse_args()
    part = chosen(*given.env)
    suites = {
        kind: in_sandbox(part, Sandbox(kind, workers=given.workers, run="bench"))
        for kind in given.kinds
    }
    tasks = {kind: list(suite.tasks(given.split)) for kind, suite in suites.items()}
    for kind, suite in suites.items():
        measure(suite, tasks[kind], given.agent, 64, 0.01)
    print(f"{'/'.join(given.env)}, {given.agent} agent, {given.workers} worker(s)")
    print(f"{'live':>5} {'sandbox':8} {'episodes/s':>11} {'steps/s':>9} {'of the first':>13}")
    for live in given.live:
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in suites}
        for _ in range(ROUNDS):
            for kind, suite in suites.items():
                found[kind].append(
                    measure(suite, tasks[kind], given.agent, live, given.seconds / ROUNDS)
                )
        first = statistics.median(e for e, _ in found[given.kinds[0]])
        for kind, values in found.items():
            episodes = statistics.median(e for e, _ in values)
            steps = statistics.median(s for _, s in values)
            print(f"{live:5} {kind:8} {episodes:11.0f} {steps:9.0f} {episodes / first:13.2f}")
    for suite in suites.values():
        getattr(suite, "close", lambda: None)()


if __name__ == "__main__":
    main()
