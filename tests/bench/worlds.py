"""Episodes a second of CPU time: minigrid's own loop and the suite's, both with the references of
the development split, twice each.

    python tests/bench/worlds.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium

from trace_bench.core.chat import read_call
from trace_bench.core.protocols import performed
from trace_bench.envs.babyai import BabyAISuite, known_levels

SUITE = BabyAISuite()
TASKS = [(task, SUITE.reference(task)) for task in SUITE.tasks("dev")]


def alone() -> None:
    for task, actions in TASKS:
        game = gymnasium.make(known_levels()[task.data["level"]])
        game.reset(seed=task.data["seed"])
        for action in actions:
            (name, _) = read_call(action["tool_calls"][0])
            game.step(game.unwrapped.actions[name])  # type: ignore[attr-defined]


def suite() -> None:
    for task, actions in TASKS:
        performed(SUITE, task, actions)


def measure(run: Callable[[], None]) -> None:
    begun = time.process_time()
    run()
    print(f"{run.__name__:6} {len(TASKS) / (time.process_time() - begun):7.0f} episodes/s")


if __name__ == "__main__":
    for _ in range(2):
        measure(alone)
        measure(suite)
