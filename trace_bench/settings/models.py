"""Agent models by a folder or a name on the hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trace_bench.core.checked import LATER
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext


@dataclass(frozen=True)
class AtSettings:
    """`model.*` of `model=hf`."""

    path: str
    """A folder, or a name on the Hugging Face hub; servers are asked for it by this path."""
    revision: str | None = field(default=None, metadata=LATER)
    """A commit, tag or branch of a hub model, read from the hub's cache without asking the hub;
    null: what the hub or its cache has now."""


def at(settings: AtSettings) -> str:
    """`model=hf`: any causal language model with a chat template. With a revision, the folder of
    that revision in the hub's cache. Raises UserError if it is not there."""
    if settings.revision is None:
        return settings.path
    if Path(settings.path).is_dir():
        raise UserError(
            f"model.revision={settings.revision} belongs to a name on the hub, and model.path="
            f"{settings.path} is a folder. Leave `model.revision` out, or change `model.path`."
        )
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(settings.path, revision=settings.revision, local_files_only=True)
        return str(found)
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
