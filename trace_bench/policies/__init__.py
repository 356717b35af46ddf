"""Policies: generate the agent's turns and keep their exact tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext

if TYPE_CHECKING:
    from trace_bench.policies.local import LocalPolicy


def local_policy(run: RunContext) -> LocalPolicy:
    """`policy=local`: the model in this process, with many episodes in one batch.

    Its libraries are imported only here, so that reading settings stays fast."""
    from trace_bench.policies.local import LocalPolicy

    return LocalPolicy(
        run.model,
        batch=run.batch,
        context=run.context,
        threads=run.threads,
        device=run.device,
        dtype=run.dtype,
        thinking=run.thinking,
        thoughts=run.thoughts,
    )


def check_device(device: str) -> None:
    """Raises UserError for a device that torch does not know or cannot use here."""
    if device == "cpu":
        return
    import torch

    try:
        torch.ones(1, device=device).item()  # "meta" holds no values
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        why = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        raise UserError(
            f"policy.device={device} cannot be used on this machine: {why}. Change "
            "`policy.device`; allowed: cpu, or a device of this PyTorch build such as cuda."
        ) from error
