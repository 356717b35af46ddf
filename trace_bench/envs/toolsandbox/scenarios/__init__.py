"""The embedded suite's scenarios: a seeded generator, fixed splits, and synthetic tasks.

suite               tasks by split and index, or by capability and seed
build               a task from a shape and a seed
shapes              which requests come together in which state of the phone
lookups, people,    the kinds of requests, an area of the phone each: how they are worded and solved
reminders
solver              what a request and its solution are, and playing one in the environment
pools               the words and wordings of each split
"""

from trace_bench.envs.toolsandbox.scenarios.solver import CAPABILITIES
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite, synthetic_task

__all__ = ["CAPABILITIES", "EmbeddedSuite", "synthetic_task"]
