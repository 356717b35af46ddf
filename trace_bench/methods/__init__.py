"""Methods by name. A method turns the base agent into another agent within a budget."""

from __future__ import annotations

from importlib import import_module

from trace_bench.core.errors import unknown
from trace_bench.core.protocols import Method

METHODS = {
    "base": "trace_bench.methods.base:Base",
    "grpo": "trace_bench.methods.grpo:Grpo",
    "gepa": "trace_bench.methods.gepa:Gepa",
    "saved": "trace_bench.methods.saved:Saved",
    "sft": "trace_bench.methods.sft:Sft",
    "trace": "trace_bench.methods.trace:Trace",
    "single_capability": "trace_bench.methods.single_capability:SingleCapability",
    "prompt_only": "trace_bench.methods.prompt_only:PromptOnly",
    "untargeted": "trace_bench.methods.untargeted:Untargeted",
}


def method(name: str) -> Method:
    """The method of that name, imported now. Raises UserError for an unknown one."""
    if name not in METHODS:
        raise unknown("method", name, METHODS, "method")
    module, _, cls = METHODS[name].partition(":")
    found: Method = getattr(import_module(module), cls)()
    return found
