"""Agent models by a folder or a name on the hub."""

from __future__ import annotations

from trace_bench.core.protocols import RunContext


def named(run: RunContext, path: str | None = None) -> str:
    """`model=hf` and `model=served`: a folder, or a name on the hub. Without `path`, the model's
    name on the servers."""
    return path or run.served_model
