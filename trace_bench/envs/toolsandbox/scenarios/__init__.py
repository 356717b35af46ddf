"""The embedded suite's scenarios: a seeded generator, fixed splits, and synthetic tasks."""

from trace_bench.envs.toolsandbox.scenarios.program import CAPABILITIES
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.envs.toolsandbox.scenarios.synthetic import synthetic_task

__all__ = ["CAPABILITIES", "EmbeddedSuite", "synthetic_task"]
