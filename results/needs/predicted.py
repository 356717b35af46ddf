"""Whether the first groups of a training say how many of all its groups teach something.

    python predicted.py RUN...

For each adapter that a run has trained: the share of the first 32 groups (the iterations that they
fill) and of all its groups in which rewards differ; below, how far these are apart on average."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from trace_bench.core.command import command
from trace_bench.core.errors import UserError
from trace_bench.core.store import read_lines

FIRST = 32


@command()
def main(folders: Sequence[str]) -> int:
    apart = []
    for folder in folders:
        trained: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for line in read_lines(Path(folder) / "metrics.jsonl"):
            if line.get("groups"):
                differ = line["groups"] * (1 - line["constant_share"])
                trained[line["adapter"].partition("@")[0]].append((line["groups"], differ))
        for adapter, groups in trained.items():
            played = [sum(count for count, _ in groups[:n]) for n in range(len(groups) + 1)]
            if played[-1] <= FIRST:
                continue  # nothing is left to predict
            until = next(n for n, count in enumerate(played) if count >= FIRST)
            first = sum(differ for _, differ in groups[:until]) / played[until]
            share = sum(differ for _, differ in groups) / played[-1]
            apart.append(abs(first - share))
            print(f"{folder:<40} {adapter:<12}{first:6.3f} of the first, {share:.3f} of all")
    if not apart:
        raise UserError(f"no training of more than {FIRST} groups in {len(folders)} runs.")
    print(f"{len(apart)} trainings, {sum(apart) / len(apart):.3f} apart on average")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
