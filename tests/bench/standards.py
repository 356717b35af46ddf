"""What an episode costs through a standard, beside a world as small inside (toy.py): two calls and
the end, in a worker process. Milliseconds by the clock, the median of 25 episodes.

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

from trace_bench.core.chat import make_call, text_message  # noqa: E402
from trace_bench.core.protocols import performed  # noqa: E402
from trace_bench.core.types import Message, Task  # noqa: E402
from trace_bench.sandbox.choose import Sandbox  # noqa: E402
from trace_bench.settings.registry import find  # noqa: E402
from trace_bench.settings.schema import EnvSettings  # noqa: E402

TIME = {"deadline": 90.0}
DONE = text_message("Done.")


def measure(name: str, suite: Any, task: Task, actions: list[Message], episodes: int = 25) -> None:
    took = []
    for _ in range(episodes):
        begun = time.perf_counter()
        last = performed(suite, task, actions)[-1]
        took.append((time.perf_counter() - begun) * 1000)
        assert last.score is not None and last.score.success, last
    print(f"{name:34} {statistics.median(took):8.1f} ms an episode", flush=True)
    suite.close()


def inside() -> None:
    os.chdir(HERE.parent)
    part = find("env", EnvSettings("custom", "toy:ToySuite"))
    suite = in_sandbox(part, Sandbox("process", run="bench", workers=1), python=sys.executable)
    task = suite.tasks("train")[1]
    measure("inside", suite, task, [*suite.reference(task)])


def mcp() -> None:
    calls = [make_call("put", thing="key"), make_call("look"), DONE]
    mine = {"tasks": "mcp_tasks:tasks", "scorer": "mcp_tasks:score", **TIME}
    with server("mcp", "mcp_box.py", "own") as port:
        suite = suite_of("mcp", url=f"http://127.0.0.1:{port}/mcp", **mine)
        measure("mcp, by address (a third call scores)", suite, suite.tasks("dev")[0], calls)
    suite = suite_of("mcp", command=[python_of("mcp"), "mcp_box.py", "own"], **mine)
    measure("mcp, by command (a third call scores)", suite, suite.tasks("dev")[0], calls, 3)


def verifiers() -> None:
    calls = [make_call("prices_list"), make_call("buy", thing="key"), DONE]
    suite = suite_of("verifiers", taskset="vf_shop", splits={"test": {"split": "test"}}, **TIME)
    measure("verifiers, in process", suite, suite.tasks("test")[0], calls)


def shop(name: str) -> None:
    calls = [make_call("prices"), make_call("buy", thing="key"), DONE]
    with server(name, f"{name}_shop.py") as port:
        suite = suite_of(name, url=f"http://127.0.0.1:{port}", **TIME)
        measure(name, suite, suite.tasks("test")[0], calls)


def main() -> None:
    parts = {"inside": inside, "mcp": mcp, "verifiers": verifiers}
    for name in sys.argv[1:] or (*parts, "openenv"):
        os.chdir(SERVERS)
        parts.get(name, lambda name=name: shop(name))()


if __name__ == "__main__":
    main()
