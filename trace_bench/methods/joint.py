"""TRACE's analysis and environments with one adapter on all of them, used for every task: against
TRACE it tells what separate adapters and routing bring, against `untargeted` what targeting brings.
It is what the yardstick of the same name trains beside a run of TRACE, as a run of its own."""

from __future__ import annotations

from trace_bench.methods.trace.method import Trace
from trace_bench.methods.trace.settings import JointSettings


class Joint(Trace):
    """`protocols.Method`."""

    title = "joint"

    def __init__(self, settings: JointSettings) -> None:
        super().__init__(settings)
