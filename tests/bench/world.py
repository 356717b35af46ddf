"""Time of reset, step and score of the embedded phone world: `python tests/bench/world.py`

Plays the reference trajectories of the dev split and many idle, long episodes; prints
microseconds. Bars: reset and step under 1,000 us each, score under 2,000 us.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from trace_bench.core.types import Step
from trace_bench.envs.registry import suite

ROUNDS = 5


def timed(into: list[float], function: Callable[..., Step], *arguments: Any) -> Step:
    begin = time.perf_counter()
    step = function(*arguments)
    into.append((time.perf_counter() - begin) * 1e6)
    return step


def report(name: str, times: list[float]) -> None:
    times = sorted(times)
    p99 = times[int(0.99 * (len(times) - 1))]
    print(
        f"{name:34} n {len(times):6}  mean {statistics.fmean(times):8.1f}"
        f"  median {times[len(times) // 2]:8.1f}  p99 {p99:8.1f}  max {times[-1]:8.1f}"
    )


def main() -> None:
    phone = suite("toolsandbox", "embedded")
    tasks = list(phone.tasks("dev"))
    actions = {task.id: phone.reference(task) for task in tasks}
    call = {"name": "no_such_tool", "arguments": "{}"}
    lost: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "function": call}],
    }
    question: dict[str, Any] = {"role": "assistant", "content": "What should I do now?"}
    reset: list[float] = []
    step: list[float] = []
    closing: list[float] = []
    long: list[float] = []
    for _ in range(ROUNDS):
        for task in tasks:
            env = phone.make()
            last = timed(reset, env.reset, task)
            for action in actions[task.id]:
                times: list[float] = []
                last = timed(times, env.step, action)
                (closing if last.done else step).extend(times)
            env = phone.make()
            last = env.reset(task)
            for action in [lost, question] * 20:
                times = []
                last = timed(times, env.step, action)
                if last.done:
                    long.extend(times)
                    break
    report("reset", reset)
    report("step", step)
    report("last step with its score", closing)
    report("last step of a 30-message episode", long)
    begin = time.perf_counter()
    live = [phone.make() for _ in range(1000)]
    for i, env in enumerate(live):
        env.reset(tasks[i % len(tasks)])
    print(f"1000 live episodes in {(time.perf_counter() - begin) * 1e3:.0f} ms")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
