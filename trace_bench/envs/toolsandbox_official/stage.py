"""Makes the official package deterministic: built once, with a fixed clock, a seeded order of tools
and repeatable ids. Also the only place that swaps its global state."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError

COMMIT = "165848b"
CLOCK = "2024-06-12 10:00:00"  # UTC; a Wednesday
SEED = 0  # of the order in which tools are shown
SUFFIXES = {
    "none": "",
    "distractors_3": "_3_distraction_tools",
    "distractors_10": "_10_distraction_tools",
    "all_tools": "_all_tools",
    "scrambled_names": "_3_distraction_tools_tool_name_scrambled",
    "scrambled_descriptions": "_3_distraction_tools_tool_description_scrambled",
    "scrambled_arg_descriptions": "_3_distraction_tools_arg_description_scrambled",
    "scrambled_arg_types": "_3_distraction_tools_arg_type_scrambled",
}
RAPID_TOOLS = frozenset((
    "search_lat_lon", "search_location_around_lat_lon", "search_weather_around_lat_lon",
    "search_stock", "convert_currency",
))  # fmt: skip
RAPID_KEY = "RAPID_API_KEY"


class Scenarios:
    """All scenarios, and `playing`, which gives one episode the package's global state."""

    def __init__(self, source: str | None) -> None:
        _find(source)
        self._pin()
        from tool_sandbox.common.tool_discovery import ToolBackend
        from tool_sandbox.scenarios import named_scenarios

        random.seed(SEED)
        self.scenarios: dict[str, Any] = named_scenarios(preferred_tool_backend=ToolBackend.DEFAULT)
        self.bases = [n for n in self.scenarios if f"{n}_all_tools" in self.scenarios]
        self._lock = threading.Lock()
        self._ids = random.Random(SEED)

    def needs_key(self, base: str) -> bool:
        """Whether a scenario's own tools (without distractors) call RapidAPI. In scenarios with
        insufficient information the right solution calls none."""
        allowed = set(self.scenarios[base].starting_context.tool_allow_list)
        return bool(RAPID_TOOLS & allowed) and "INSUFFICIENT_INFORMATION" not in self.categories(
            base
        )

    def categories(self, name: str) -> list[str]:
        return sorted(str(category) for category in self.scenarios[name].categories)

    @contextmanager
    def playing(self, world: Any, ids: random.Random) -> Iterator[None]:
        """Inside, the package's global state is `world.context`, which is kept afterwards."""
        from tool_sandbox.common.execution_context import get_current_context, set_current_context

        with self._lock:
            set_current_context(world.context)
            self._ids = ids
            try:
                yield
            finally:
                world.context = get_current_context()

    def _pin(self) -> None:
        """Fixes the clock, sets local time to UTC, and makes the tools draw ids from our stream."""
        os.environ["TZ"] = "UTC"
        time.tzset()
        # Everything is imported before the clock stops: some packages derive from its classes.
        import tool_sandbox.roles.execution_environment
        import tool_sandbox.scenarios  # noqa: F401
        from freezegun import freeze_time
        from tool_sandbox.tools import contact, messaging, reminder

        freeze_time(CLOCK, ignore=["trace_bench"]).start()

        for module in (contact, messaging, reminder):
            module.uuid4 = lambda: uuid.UUID(int=self._ids.getrandbits(128), version=4)


def _find(source: str | None) -> None:
    """Makes `tool_sandbox` importable. Raises UserError that says how to get it."""
    if source is not None:
        if not (Path(source) / "tool_sandbox" / "scenarios").is_dir():
            raise UserError(
                f"env.source={source} is no checkout of ToolSandbox (no folder "
                "tool_sandbox/scenarios in it). Change `env.source`."
            )
        sys.path.insert(0, source)
    try:
        import tool_sandbox  # noqa: F401
    except ImportError as error:
        raise UserError(
            "the official ToolSandbox is not installed. Get it with `git clone "
            f"https://github.com/apple/ToolSandbox` (commit {COMMIT}) and name the folder in "
            "env.source, with sandbox=process and env.python=<a Python 3.11 with the pins of "
            "containers/toolsandbox/requirements.txt>; or build its image with `python -m "
            "trace_bench.sandbox.build toolsandbox` and use sandbox=docker."
        ) from error
