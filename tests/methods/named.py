"""Methods by name."""

from __future__ import annotations

from typing import Any

from trace_bench.core.protocols import RunContext
from trace_bench.settings.registry import find
from trace_bench.settings.schema import PartSettings

PLAYING = (
    "ace", "gepa", "grpo", "joint", "prompt_only", "single_capability", "trace", "untargeted",
)  # fmt: skip
"""Those that play rollouts, and can do so with a scripted agent."""


QUICK: dict[str, dict[str, Any]] = {
    name: {"synthetic_tasks": 24} for name in ("joint", "single_capability", "trace", "untargeted")
}
"""Settings for tests that count rollouts: fewer tasks to draw and to test."""


def method(name: str, **settings: Any) -> Any:
    """The method with these settings, and its defaults for the others."""
    return find("method", PartSettings(name, options=settings)).make(RunContext())
