"""TRACE with the first capability of its selection only: one adapter, the whole budget."""

from __future__ import annotations

from trace_bench.methods.trace import Trace


class SingleCapability(Trace):
    """`protocols.Method`. Settings: TRACE's, with `max_capabilities` 1 (conf/method)."""

    name = "single_capability"
