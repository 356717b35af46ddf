"""Suites by name and variant; a suite's code is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

from trace_bench.core.errors import unknown
from trace_bench.core.protocols import Suite

Ask = Callable[[str, Sequence[Mapping[str, Any]]], str]
"""(role, messages) -> text: whoever plays a role in an environment, such as the simulated user."""

# Environment -> variant -> "module:factory". A factory takes the augmentation, the environment's
# own options, and `ask` (None where nobody answers).
SUITES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "toolsandbox": {
            "embedded": "trace_bench.envs.toolsandbox.scenarios.suite:embedded",
            "official": "trace_bench.envs.toolsandbox_official.suite:official",
        },
        "tau2": {
            "airline": "trace_bench.envs.tau2.suite:airline",
            "retail": "trace_bench.envs.tau2.suite:retail",
            "telecom": "trace_bench.envs.tau2.suite:telecom",
        },
    }
)


def suite(
    name: str,
    variant: str,
    augmentation: str = "none",
    *,
    options: Mapping[str, str] | None = None,
    ask: Ask | None = None,
) -> Suite:
    """The suite of that name; UserError naming the allowed ones if there is none.

    `augmentation` changes what tools the agent is shown in the tasks of every split; `options` are
    the environment's own settings as text."""
    if name not in SUITES:
        raise unknown("environment", name, SUITES, "env")
    variants = SUITES[name]
    if variant not in variants:
        raise unknown(f"suite of {name}", variant, variants, "env.suite")
    module, _, factory = variants[variant].partition(":")
    made: Suite = getattr(import_module(module), factory)(augmentation, dict(options or {}), ask)
    return made
