"""What each setting of method=trace that is off by default brings alone, on the development split:

    for what in calibration target trunk split pairs; do
        python -m trace_bench.sweep sweeps/trace_$what.yaml --runs-root /tmp/options
    done
    python tests/bench/trace_options.py /tmp/options

Prints a table: success of every setting, and its difference from the defaults, paired by task and
seed, with a 95 % interval over tasks and seeds. Needs the same seeds for all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trace_bench.results.compare import Cell
from trace_bench.results.places import find
from trace_bench.results.records import Record
from trace_bench.results.uncertainty import uncertainty

DEFAULTS = {
    "calibration_rounds": 5,
    "target_share": 0.0,
    "trunk_share": 0.0,
    "split": "equal",
    "pair_share": 0.0,
}


def changed(record: Record) -> str:
    """The settings that are not the defaults', in words."""
    given = record.method_settings
    found = [f"{k}={given.get(k, v)}" for k, v in DEFAULTS.items() if given.get(k, v) != v]
    return ", ".join(found) or "defaults"


def line(name: str, records: Sequence[Record], control: Cell) -> str:
    """One row of the table."""
    cell = Cell("trace", records[0].budget, tuple(sorted(records, key=lambda r: r.seed)))
    seeds = [r.seed for r in cell.records]
    if seeds != [r.seed for r in control.records]:
        raise SystemExit(f"{name} has seeds {seeds}; the defaults have others")
    start = f"| {name} | {len(seeds)} | {cell.value:.3f} |"
    if cell.records == control.records:
        return f"{start} | |"
    apart = cell.matrix - control.matrix
    each = np.nanmean(apart, axis=1)
    per_task = np.nanmean(apart, axis=0)
    half = uncertainty(per_task.tolist(), each.tolist()).width(0.975)
    mean = float(per_task.mean())
    shown = ", ".join(f"{value:+.3f}" for value in each)
    return f"{start} {mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}] | {shown} |"


def main(places: Sequence[str]) -> int:
    groups: dict[str, list[Record]] = {}
    for record in find([Path(p) for p in places]).records:
        groups.setdefault(changed(record), []).append(record)
    if "defaults" not in groups:
        raise SystemExit("no runs with the defaults in " + ", ".join(places))
    base = sorted(groups["defaults"], key=lambda r: r.seed)
    control = Cell("trace", base[0].budget, tuple(base))
    print("| method=trace with | seeds | success | difference, 95 % interval | each seed |")
    print("|---|---|---|---|---|")
    for name in ["defaults", *sorted(groups.keys() - {"defaults"})]:
        print(line(name, groups[name], control))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
