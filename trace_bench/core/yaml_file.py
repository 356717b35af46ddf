"""Reads settings in YAML, such as a run's config.yaml, which may be damaged or meant to do harm."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, fault_of
from trace_bench.core.store import read_bytes, repair

# Aliases count each time: a few lines of them may stand for billions.
LIMITS = Limits(2**20, depth=50, items=100_000)


def read_settings(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError for anything else, for what is no plain data,
    and for a file that is too large, too deep, or stands for too many values."""
    import yaml

    try:
        data = read_bytes(path)
        if len(data) > LIMITS.size:
            raise ValueError(f"{len(data)} bytes; allowed: {LIMITS.size}")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _check_depth(yaml.parse(data.decode(), Loader=loader))  # too deep a file ends the process
        value = yaml.load(data.decode(), Loader=loader)
        if not isinstance(value, dict):
            raise ValueError("no settings")
        if fault := fault_of(value, LIMITS):
            raise ValueError(fault)
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read ({why}). {repair(path)}") from error
    return value


def _check_depth(events: Iterable[Any]) -> None:
    """Reads the file's events, which takes no recursion. Raises ValueError."""
    import yaml

    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > LIMITS.depth:
            raise ValueError(f"deeper than {LIMITS.depth}")
