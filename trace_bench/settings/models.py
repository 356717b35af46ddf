"""Agent models by a folder or a name on the hub."""

from __future__ import annotations

from trace_bench.core.protocols import RunContext


def at(path: str) -> str:
    """`model=hf`: any causal language model with a chat template.

    `path`: a folder, or a name on the Hugging Face hub; servers are asked for it by this path."""
    return path


def named(run: RunContext, path: str | None = None) -> str:
    """`model=served`: a model on servers (policy=openai), by its name there.

    `path`: its weights, where they are trained here; null: its name on the hub."""
    return path or run.served_model
