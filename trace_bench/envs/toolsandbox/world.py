"""The world: the databases of one episode and the tools that act on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_bench.envs.toolsandbox.databases import Databases, ToolFault
from trace_bench.envs.toolsandbox.tools.catalog import catalog
from trace_bench.envs.toolsandbox.tools.spec import check_arguments


class World(Databases):
    """`World(start, now, seed)`: see `Databases`. Worlds share nothing, any number may live."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The tool's result as JSON-safe data that shares nothing with the world.

        Raises ToolFault: NameError for an unknown tool, TypeError and ValueError for bad
        arguments, and what the tool itself refuses.
        """
        spec = catalog().get(name)
        if spec is None:
            raise ToolFault("NameError", "Unknown tool")
        check_arguments(spec, arguments)
        return spec.function(self, **arguments)
