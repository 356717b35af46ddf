"""What slow simulated users cost: the time of episodes that run side by side, over that of the
slowest of them alone, with the user asked from this process and from a sandbox.

    python tests/bench/slow_users.py [--kinds inline process docker] [--episodes 32] [--turns 8]

tau2's telecom tasks (they are asked for an answer each turn) with an agent that answers at once and
users who think for a time drawn from an exponential distribution, the same in every kind. 1.0 is
the least possible.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playing import FunctionPolicy, play
from sandboxes import chosen, in_sandbox

from trace_bench.core.types import AgentSpec
from trace_bench.sandbox.engine import Sandbox


class SlowUsers:
    """`ask` of many users. How long each thinks follows from its instructions and the length of the
    conversation."""

    def __init__(self, mean: float) -> None:
        self._mean = mean
        self._thought: dict[str, dict[int, float]] = {}

    def ask(self, role: str, messages: Sequence[Mapping[str, Any]], schema: Any = None) -> str:
        who = str(messages[0]["content"])
        seconds = Random(f"{who}/{len(messages)}").expovariate(1 / self._mean)
        self._thought.setdefault(who, {})[len(messages)] = seconds
        time.sleep(seconds)
        return "It does not work yet."

    @property
    def slowest(self) -> float:
        return max(sum(times.values()) for times in self._thought.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["inline", "process"])
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--mean", type=float, default=0.5, help="seconds of an answer")
    given = parser.parse_args()
    part = chosen("tau2", "telecom")
    policy = FunctionPolicy(lambda _: {"role": "assistant", "content": "I see."})
    policy.capacity = given.episodes
    for kind in given.kinds:
        users = SlowUsers(given.mean)
        suite = in_sandbox(part, Sandbox(kind, run="bench"), ask=users.ask)
        tasks = list(islice(cycle(suite.tasks("train")), given.episodes))
        seeds = range(given.episodes)
        play(policy, suite, AgentSpec("idle"), tasks[:1], [0], max_turns=1)  # it imports
        began = time.perf_counter()
        played = play(policy, suite, AgentSpec("idle"), tasks, seeds, max_turns=given.turns)
        took = time.perf_counter() - began
        suite.close()
        assert not (lost := [t.failure for t in played if t.failure]), lost[0]
        print(f"{kind:8} {took:6.1f} s, the slowest user thinks for {users.slowest:5.1f} s: "
              f"{took / users.slowest:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
