"""Suites by name and variant; a suite's code is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from trace_bench.errors import unknown
from trace_bench.protocols import Suite

# Environment -> variant -> "module:factory". A factory takes the augmentation.
SUITES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "toolsandbox": {
            "embedded": "trace_bench.envs.toolsandbox.scenarios.suite:EmbeddedSuite",
        },
    }
)


def suite(name: str, variant: str, augmentation: str = "none") -> Suite:
    """The suite of that name; UserError naming the allowed ones if there is none.

    `augmentation` changes what tools the agent is shown in the tasks of every split."""
    if name not in SUITES:
        raise unknown("environment", name, SUITES, "env")
    variants = SUITES[name]
    if variant not in variants:
        raise unknown(f"suite of {name}", variant, variants, "env.suite")
    module, _, factory = variants[variant].partition(":")
    made: Suite = getattr(import_module(module), factory)(augmentation)
    return made
