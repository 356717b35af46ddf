"""What an episode costs through a standard, beside the same world inside: two calls and the end, in
a worker process. Milliseconds by the clock, the median of 25 episodes.

    TRACE_BENCH_STANDARDS=.venv-standards python tests/bench/standards.py [NAME ...]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from sandboxes import in_sandbox  # noqa: E402
from standard_servers import HERE as SERVERS  # noqa: E402
from standard_servers import python_of, server, suite_of  # noqa: E402

from trace_bench.core.chat import Toolbox, make_call, text_message, tool  # noqa: E402
from trace_bench.core.protocols import Env, Suite, performed  # noqa: E402
from trace_bench.core.types import Message, Score, Step, StopReason, Task  # noqa: E402
from trace_bench.sandbox.choose import Sandbox  # noqa: E402
from trace_bench.settings.registry import find  # noqa: E402
from trace_bench.settings.schema import EnvSettings  # noqa: E402

EPISODES = 25
TIME = {"deadline": 90.0}
DONE = text_message("Done.")


class Inside(Env):
    """The box of `mcp_box.py`."""

    @tool
    def put(self, thing: str) -> str:
        """Put a thing into the box."""
        self.box.append(thing)
        return f"The box has {len(self.box)} things."

    @tool
    def look(self) -> str:
        """Look into the box."""
        return ", ".join(self.box) or "nothing"

    def reset(self, task: Task) -> Step:
        self.box: list[str] = []
        self.tools = Toolbox(self)
        return Step(({"role": "user", "content": "Put a key into it."},), tools=self.tools.schemas)

    def step(self, action: Message) -> Step:
        if calls := action.get("tool_calls"):
            return Step(self.tools.answer(calls))
        score = Score(float("key" in self.box), "key" in self.box)
        return Step(done=True, score=score, stop=StopReason.DONE)


class InsideSuite(Suite):
    name, variant = "box", "inside"

    def splits(self) -> list[str]:
        return ["dev"]

    def tasks(self, split: str) -> list[Task]:
        return [Task("box/inside/dev/0000", "box", "dev", 0)]

    def task(self, task_id: str) -> Task:
        return self.tasks("dev")[0]

    def make(self) -> Inside:
        return Inside()


def measure(name: str, suite: Any, split: str, calls: list[Message], episodes: int) -> None:
    task, took = suite.tasks(split)[0], []
    for _ in range(episodes):
        begun = time.perf_counter()
        last = performed(suite, task, [*calls, DONE])[-1]
        took.append((time.perf_counter() - begun) * 1000)
        assert last.score is not None and last.score.success, last
    print(f"{name:34} {statistics.median(took):8.1f} ms an episode", flush=True)
    suite.close()


def inside() -> None:
    os.chdir(HERE)
    part = find("env", EnvSettings("custom", "standards:InsideSuite"))
    suite = in_sandbox(part, Sandbox("process", run="bench", workers=1), python=sys.executable)
    measure("inside", suite, "dev", [make_call("put", thing="key"), make_call("look")], EPISODES)


def mcp() -> None:
    calls = [make_call("put", thing="key"), make_call("look")]
    mine = {"tasks": "mcp_tasks:tasks", "scorer": "mcp_tasks:score", **TIME}
    with server("mcp", "mcp_box.py", "own") as port:
        suite = suite_of("mcp", url=f"http://127.0.0.1:{port}/mcp", **mine)
        measure("mcp, by address (a third call scores)", suite, "dev", calls, EPISODES)
    suite = suite_of("mcp", command=[python_of("mcp"), "mcp_box.py", "own"], **mine)
    measure("mcp, by command (a third call scores)", suite, "dev", calls, 3)


def verifiers() -> None:
    calls = [make_call("prices_list"), make_call("buy", thing="key")]
    suite = suite_of("verifiers", taskset="vf_shop", splits={"test": {"split": "test"}}, **TIME)
    measure("verifiers, in process", suite, "test", calls, EPISODES)


def shop(name: str) -> None:
    calls = [make_call("prices"), make_call("buy", thing="key")]
    with server(name, f"{name}_shop.py") as port:
        suite = suite_of(name, url=f"http://127.0.0.1:{port}", **TIME)
        measure(name, suite, "test", calls, EPISODES)


def main() -> None:
    parts = {"inside": inside, "mcp": mcp, "verifiers": verifiers}
    for name in sys.argv[1:] or (*parts, "openenv"):
        os.chdir(SERVERS)
        parts.get(name, lambda name=name: shop(name))()


if __name__ == "__main__":
    main()
