"""Policies: generate the agent's turns and keep their exact tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trace_bench.core.protocols import RunContext

if TYPE_CHECKING:
    from trace_bench.policies.local import LocalPolicy


def local_policy(run: RunContext) -> LocalPolicy:
    """`policy=local`: the model in this process, with many episodes in one batch.

    Its libraries are imported only here, so that reading settings stays fast."""
    from trace_bench.policies.local import LocalPolicy

    return LocalPolicy(
        run.model, batch=run.batch, context=run.context, threads=run.threads, device=run.device,
        dtype=run.dtype, thinking=run.thinking, thoughts=run.thoughts,
    )  # fmt: skip
