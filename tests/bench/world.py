"""CPU time of the embedded phone world: making its tasks, and playing them.

    python tests/bench/world.py [--against <another checkout>] [--rounds 5]

Every round is a process of its own. With `--against` the processes of the two checkouts take turns,
and the last column is how many times as long the other one takes. Bars: reset and step under
1,000 us each, the last step with its score under 2,000 us.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
SEEDS = 40  # synthetic tasks of each capability
REPEATS = 5  # of every episode
LOST: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "function": {"name": "no_such_tool", "arguments": "{}"}}],
}
QUESTION: dict[str, Any] = {"role": "assistant", "content": "What should I do now?"}
IDLE: dict[str, Any] = {"role": "assistant", "content": ""}


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call, and what it gives."""
    begin = time.process_time()
    value = function()
    return time.process_time() - begin, value


def measure() -> dict[str, float]:
    """All figures of the checkout that is on the path: milliseconds for the tasks, microseconds
    for the episodes, megabytes for the memory."""
    seconds, suite = timed(_suite)
    found = {"import, ms": seconds * 1e3}
    seconds, tasks = timed(lambda: suite.tasks("train"))
    found["first split (train), with the libraries it loads, ms"] = seconds * 1e3
    _use_every_library(suite)
    for split in ("dev", "test", "train_large"):
        seconds, tasks = timed(lambda split=split: suite.tasks(split))  # type: ignore[misc]
        found[f"{split}, ms a task"] = seconds * 1e3 / len(tasks)
    found |= _synthetic(suite)
    found |= _episodes(suite)
    found["peak memory, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def _suite() -> Any:
    from trace_bench.envs.toolsandbox.scenarios import EmbeddedSuite

    return EmbeddedSuite()


def _use_every_library(suite: Any) -> None:
    """Units, dates, phone numbers and text similarity are loaded when first used."""
    for task in suite.tasks("train"):
        play(suite, task, suite.reference(task))
        play(suite, task, [QUESTION])


def play(suite: Any, task: Any, replies: list[Any]) -> Any:
    """An episode with these replies, and silence after them."""
    env = suite.make()
    step = env.reset(task)
    for reply in [*replies, *[IDLE] * 40]:
        if step.done:
            break
        step = env.step(reply)
    return step


def _synthetic(suite: Any) -> dict[str, float]:
    """Synthetic tasks, and their self-test: the reference and an idle agent."""
    names = suite.capabilities()
    first, _ = timed(lambda: suite.synthetic(names[0], 0))
    making, made = timed(
        lambda: [suite.synthetic(name, 1000 + i) for name in names for i in range(SEEDS)]
    )
    testing, _ = timed(
        lambda: [(play(suite, t, suite.reference(t)), play(suite, t, [])) for t in made]
    )
    return {
        "first synthetic task, ms": first * 1e3,
        "synthetic task, ms": making * 1e3 / len(made),
        "its self-test, ms": testing * 1e3 / len(made),
    }


def _episodes(suite: Any) -> dict[str, float]:
    """Reference episodes of the dev split, and long ones in which nothing is achieved."""
    times: dict[str, list[float]] = {"reset": [], "step": [], "last step": [], "long": []}
    tasks = suite.tasks("dev")
    for task in tasks * REPEATS:
        env = suite.make()
        seconds, step = timed(lambda env=env, task=task: env.reset(task))  # type: ignore[misc]
        times["reset"].append(seconds)
        for action in suite.reference(task):
            seconds, step = timed(lambda env=env, action=action: env.step(action))  # type: ignore[misc]
            times["last step" if step.done else "step"].append(seconds)
        step = env.reset(task)
        for action in [LOST, QUESTION] * 20:
            seconds, step = timed(lambda env=env, action=action: env.step(action))  # type: ignore[misc]
            if step.done:
                times["long"].append(seconds)
                break
    means = {name: statistics.fmean(values) * 1e6 for name, values in times.items()}
    live, _ = timed(lambda: [suite.make().reset(tasks[i % len(tasks)]) for i in range(1000)])
    return {
        "reset, us": means["reset"],
        "step, us": means["step"],
        "last step with its score, us": means["last step"],
        "last step of 30 messages, us": means["long"],
        "1000 live episodes, ms": live * 1e3,
    }


def in_process(checkout: Path) -> dict[str, float]:
    """The figures of a checkout, measured in a new process."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--once"]
    out = subprocess.run(command, env=environment, cwd=checkout, check=True, capture_output=True)
    found: dict[str, float] = json.loads(out.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help="one round as JSON, in this process")
    given = parser.parse_args()
    if given.once:
        print(json.dumps(measure()))
        return
    checkouts = [HERE] if given.against is None else [HERE, given.against.resolve()]
    rounds = [[in_process(checkout) for checkout in checkouts] for _ in range(given.rounds)]
    print(f"median of {given.rounds} rounds, CPU time")
    for name in rounds[0][0]:
        here, *other = (
            statistics.median(row[i][name] for row in rounds) for i in range(len(checkouts))
        )
        beside = f"{other[0]:10.2f} {other[0] / here:8.2f} x" if other else ""
        print(f"{name:56}{here:10.2f}{beside}")


if __name__ == "__main__":
    main()
