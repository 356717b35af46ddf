"""One finished run in formats that others' programs read.

    card      a rollout card (see results/card.py), the project's own bundle
    inspect   logs of Inspect (inspect_ai), one for each agent and for each call of the method
    atif      trajectories in Harbor's interchange format, with token ids and log-probabilities
    hf        a dataset for the Hugging Face hub: traces and Parquet

Every export appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trace_bench.core.errors import unknown
from trace_bench.results import card
from trace_bench.results.formats import atif, hf, inspect
from trace_bench.results.formats.episodes import FinishedRun
from trace_bench.results.runs import finished

WRITERS: Mapping[str, Callable[[FinishedRun, Path], None]] = {
    "inspect": inspect.write,
    "atif": atif.write,
    "hf": hf.write,
}
FORMATS = ("card", *WRITERS)


def export(folder: Path, out: Path, kind: str) -> list[Path]:
    """Writes a finished run to the folder `out`; its files. Raises UserError."""
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS, "--format")
    if kind == "card":
        return card.export(folder, out)
    with card.bundle(folder, out) as (building, _):
        WRITERS[kind](FinishedRun(folder, finished(folder)), building)
    return sorted(p for p in out.rglob("*") if p.is_file())
