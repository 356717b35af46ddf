"""Factories of the package's policies. Libraries are imported only when a policy is built, so that
reading settings stays fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import HasReference, RunContext
from trace_bench.policies.scripted import ReferencePolicy

if TYPE_CHECKING:
    from trace_bench.policies.local import LocalPolicy


def local(run: RunContext) -> LocalPolicy:
    """`policy=local`: runs the model in this process."""
    from trace_bench.policies.local import LocalPolicy

    return LocalPolicy(
        run.model,
        batch=run.batch,
        context=run.context,
        threads=run.threads,
        device=run.device,
        dtype=run.dtype,
    )


def reference(run: RunContext) -> ReferencePolicy:
    """`policy=reference`: the upper bound. Raises UserError for a suite without references."""
    if not isinstance(run.suite, HasReference):
        name = "this suite" if run.suite is None else f"{run.suite.name}/{run.suite.variant}"
        raise UserError(
            f"policy=reference replays reference trajectories, and {name} has none (HasReference: "
            "reference, see docs/environments.md). Change `policy`."
        )
    return ReferencePolicy(run.suite)
