"""Methods by name, with the settings of their files in conf/."""

from __future__ import annotations

from typing import Any

from trace_bench.core.protocols import RunContext
from trace_bench.settings.compose import compose
from trace_bench.settings.registry import find

PLAYING = ("gepa", "grpo", "prompt_only", "single_capability", "trace", "untargeted")
"""Those that play rollouts."""


QUICK = {
    name: ["method.synthetic_tasks=24"] for name in ("single_capability", "trace", "untargeted")
}
"""Overrides for tests that count rollouts: fewer tasks to draw and to test."""


def method(name: str, *overrides: str) -> Any:
    """The method that `method=<name>` and these overrides give."""
    chosen = compose([f"method={name}", *overrides]).method
    return find("method", chosen).make(RunContext())
