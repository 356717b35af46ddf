"""One finished run in formats that others' programs read.

    card      a rollout card (see results/card.py), the project's own bundle
    inspect   logs of Inspect (inspect_ai), one for each agent and for each call of the method
    atif      trajectories in Harbor's interchange format, with token ids and log-probabilities
    hf        a dataset for the Hugging Face hub: traces and Parquet

Every export appears whole or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trace_bench.core.errors import UserError, unknown
from trace_bench.core.store import file_hash, read_object
from trace_bench.results.card import export as card
from trace_bench.results.formats import atif, hf, inspect
from trace_bench.results.formats.episodes import Source
from trace_bench.results.runs import read_run

WRITERS: Mapping[str, Callable[[Source, Path], None]] = {
    "inspect": inspect.write,
    "atif": atif.write,
    "hf": hf.write,
}
FORMATS = ("card", *WRITERS)


def export(folder: Path, out: Path, kind: str) -> list[Path]:
    """Writes a finished run to the folder `out` in a format; its files. UserError for a run that is
    unfinished or edited, a place that is taken, and a format that does not exist."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS, "--format")
    if kind == "card":
        return card(folder, out)
    read_run(folder)
    summary = read_object(folder / "summary.json")
    for name, digest in summary["hashes"].items():
        if file_hash(folder / name) != digest:
            raise UserError(f"{folder}: {name} is not the file that the summary was made from")
    with _whole(out) as building:
        WRITERS[kind](Source(folder, summary), building)
    return sorted(p for p in out.rglob("*") if p.is_file())


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder that gets its name when all is in it."""
    if out.exists():
        raise UserError(f"{out} exists already. Name another place in --out.")
    building = out.with_name(f".{out.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    yield building
    building.rename(out)
