"""One finished run in formats that others' programs read.

    card      a rollout card, the project's own bundle
    inspect   logs of Inspect (inspect_ai), one for each agent and for each call of the method
    atif      trajectories in Harbor's interchange format, with token ids and log-probabilities
    hf        a dataset for the Hugging Face hub: traces and Parquet

Every export appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trace_bench.core import store
from trace_bench.core.errors import UserError, unknown
from trace_bench.results.formats import atif, card, hf, inspect
from trace_bench.results.formats.episodes import FinishedRun
from trace_bench.results.records import DAMAGE
from trace_bench.results.runs import finished, read_run

WRITERS: Mapping[str, Callable[[FinishedRun, Path], None]] = {
    "card": card.write,
    "inspect": inspect.write,
    "atif": atif.write,
    "hf": hf.write,
}


def export(folder: Path, out: Path, kind: str = "card") -> list[Path]:
    """Writes a finished run to the folder `out`, which has this name when all is in it; its files.
    Raises UserError, also for a run that is unfinished, edited or damaged."""
    if kind not in WRITERS:
        raise unknown("format", kind, WRITERS, "--format")
    try:
        source = _checked(folder)
        with store.whole(out) as building:
            building.mkdir()
            WRITERS[kind](source, building)
    except DAMAGE as error:
        raise UserError(
            f"{store.shown(folder)}: damaged ({type(error).__name__}: {str(error)[:200]})"
        ) from error
    return sorted(p for p in out.rglob("*") if p.is_file())


def _checked(folder: Path) -> FinishedRun:
    """The run, whose files are those that its summary was made from."""
    read_run(folder)  # finished, unedited, and within its budget
    source = FinishedRun(folder, finished(folder))
    for name in source.files:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{folder}: {name} is a link to a place outside of the folder")
        if not (folder / name).is_file():
            raise UserError(f"{folder}: {name} is no plain file")
    for name, digest in source.summary.hashes.items():
        if (store.file_hash(folder / name) if name in source.files else None) != digest:
            shown = store.shown(Path(name))
            raise UserError(f"{folder}: {shown} is not the file that the summary was made from")
    return source
