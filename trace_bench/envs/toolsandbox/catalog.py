"""All tools of the agent by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from trace_bench.envs.toolsandbox import (
    tools_contact,
    tools_messaging,
    tools_reminder,
    tools_search,
    tools_setting,
    tools_utilities,
)
from trace_bench.envs.toolsandbox.spec import ToolSpec


@lru_cache(maxsize=1)
def catalog() -> Mapping[str, ToolSpec]:
    """The agent's 33 tools, read-only, in a fixed order."""
    modules = (
        tools_setting,
        tools_contact,
        tools_messaging,
        tools_reminder,
        tools_utilities,
        tools_search,
    )
    specs = [spec for module in modules for spec in module.tools()]
    return MappingProxyType({spec.name: spec for spec in specs})
