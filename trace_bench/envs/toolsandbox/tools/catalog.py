"""All tools of the agent by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from trace_bench.envs.toolsandbox.tools import (
    contact,
    messaging,
    reminder,
    search,
    setting,
    utilities,
)
from trace_bench.envs.toolsandbox.tools.spec import ToolSpec


@lru_cache(maxsize=1)
def catalog() -> Mapping[str, ToolSpec]:
    """The agent's 33 tools, read-only, in a fixed order."""
    modules = (
        setting,
        contact,
        messaging,
        reminder,
        utilities,
        search,
    )
    specs = [spec for module in modules for spec in module.tools()]
    return MappingProxyType({spec.name: spec for spec in specs})
