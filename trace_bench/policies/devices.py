"""The devices that models run on."""

from __future__ import annotations

from trace_bench.core.errors import UserError


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
