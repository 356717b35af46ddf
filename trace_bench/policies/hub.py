"""Models by a folder, or by a name on the hub or at servers; the one whose own program may run; the
devices that they run on. Reading settings imports this, and no torch with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext


@dataclass(frozen=True)
class AtSettings:
    """`model.*` of `model=hf`."""

    path: str
    """A folder, or a name on the Hugging Face hub; servers are asked for it by this path."""
    revision: str | None = None
    """A commit, tag or branch of a hub model, read from the hub's cache without asking the hub;
    null: what the hub or its cache has now."""
    trust_remote_code: bool = False
    """Run the program that comes with the model, in this process and with all that it may do (for
    architectures that transformers does not know); give a revision, so that it stays the same."""


TRUSTED = "TRACE_BENCH_TRUSTED_MODEL"
"""The environment variable with the one model whose own program may run: processes that this one
starts load the model too."""


def trusted(path: str) -> bool:
    """Whether the program of the model at this path may run."""
    return os.environ.get(TRUSTED) == path


def at(settings: AtSettings) -> str:
    """`model=hf`: any causal language model with a chat template. With a revision, the folder of
    that revision in the hub's cache. Raises UserError if it is not there."""
    path = _at(settings)
    if settings.trust_remote_code:
        os.environ[TRUSTED] = path
    elif trusted(path):
        del os.environ[TRUSTED]
    return path


def _at(settings: AtSettings) -> str:
    if settings.revision is None:
        return settings.path
    if Path(settings.path).is_dir():
        raise UserError(
            f"model.revision={settings.revision} belongs to a name on the hub, and model.path="
            f"{settings.path} is a folder. Leave `model.revision` out, or change `model.path`."
        )
    from huggingface_hub import snapshot_download

    try:
        return str(
            snapshot_download(settings.path, revision=settings.revision, local_files_only=True)
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.path={settings.path} is not in the hub's cache at model.revision="
            f"{settings.revision}. Get it with `hf download {settings.path} --revision "
            f"{settings.revision}`, or change `model.path` or `model.revision`."
        ) from error


def named(run: RunContext, path: str | None = None) -> str:
    """`model=served`: a model on servers (policy=openai), by its name there.

    `path`: its weights, where they are trained here; null: its name on the hub."""
    return path or run.served_model


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
