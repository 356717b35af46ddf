"""trace_bench: rollout-matched comparisons of methods that train LLM agents.

    result = trace_bench.run(method="grpo", env="toolsandbox", budget=320)
    trace_bench.load(folder), trace_bench.compare(a, b)

What an environment, method, policy or trainer of your own is made of can be imported from here too
(`from trace_bench import Score, Step, Task`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trace_bench.core import VERSION as __version__
from trace_bench.core.chat import Toolbox, answer_call, make_call, make_tool, read_call, tool
from trace_bench.core.errors import EpisodeError, TraceBenchError, UserError
from trace_bench.core.protocols import (
    Env,
    Lab,
    Lender,
    Method,
    MethodPlan,
    Need,
    Phase,
    PlannedRun,
    PlayElsewhere,
    Policy,
    RunContext,
    Suite,
    Tracker,
    Trainer,
    TrainingJob,
    TurnReply,
    TurnRequest,
    Typical,
    Yardstick,
)
from trace_bench.core.types import (
    JSON,
    AdapterRef,
    AgentSpec,
    Message,
    Milestone,
    Purpose,
    Score,
    Step,
    StopReason,
    Task,
    Tool,
    Trajectory,
    Turn,
)

if TYPE_CHECKING:
    from trace_bench.runner.api import Result, compare, load, run
    from trace_bench.trainers.algorithms import Algorithm
else:  # a type checker knows all names, and should know which are none
    _LATER = dict.fromkeys(("Result", "compare", "load", "run"), "runner.api")
    _LATER["Algorithm"] = "trainers.algorithms"  # all these need what is slow to import

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return getattr(import_module(f"trace_bench.{_LATER[name]}"), name)
        raise AttributeError(f"module 'trace_bench' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *_LATER]
