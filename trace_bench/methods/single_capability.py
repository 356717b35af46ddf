"""TRACE with the first capability of its selection only: one adapter, the whole budget."""

from __future__ import annotations

from trace_bench.core.protocols import Yardstick
from trace_bench.methods.trace.method import Trace
from trace_bench.methods.trace.settings import SingleCapabilitySettings


class SingleCapability(Trace):
    """`protocols.Method`."""

    title = "single_capability"

    def __init__(self, settings: SingleCapabilitySettings) -> None:
        super().__init__(settings)

    def yardsticks(self) -> tuple[Yardstick, ...]:
        """None: with one capability there is nothing to join."""
        return ()
